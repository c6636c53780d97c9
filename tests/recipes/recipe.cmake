# apply_recipe.py has the copy's project() read this: the recipe's test joins when all folders are there.
cmake_language(DEFER CALL include ${CMAKE_SOURCE_DIR}/tests/recipes/recipe_targets.cmake)
