# What opens models: included by CMakeLists.txt of this folder.
list(APPEND MODEL_SOURCES
  source.cc source_bitnet.cc source_fp8.cc source_gguf.cc source_gguf_config.cc source_huggingface.cc source_lowbit.cc)
list(APPEND MODEL_TEST_SOURCES source_bitnet_test.cc source_fp8_test.cc source_test.cc)
