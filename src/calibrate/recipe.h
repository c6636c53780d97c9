#pragma once
// Which layer gets which format: options and recipe files.

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lowbit/error.h"
#include "lowbit/quantize.h"
#include "text/regex.h"

namespace lowbit {

/// How the quantizer treats a tensor.
enum class LayerRole {
  kLinear,     // a matrix inside a block
  kEmbedding,  // the rows that tokens become
  kHead,       // the matrix that makes logits
  kOther,      // norms, biases: always kept
};
LayerRole layer_role(const std::string& name, size_t dimensions);

/// One line of a recipe: "<regex>  keep" or "<regex>  <format> [group=64|128x128|row|tensor] [scale=f16]
/// [zero] [fit=lsq]". The regex is searched for in the tensor's name. '#' starts a comment.
struct RecipeRule {
  text::Regex pattern;
  QuantizeSpec spec;
};

class Recipe {
 public:
  /// Rules of the file, then the keep patterns. Errors: kNotFound/kIo, kInvalidArgument with the
  /// line's number.
  static Result<Recipe> make(const QuantizeOptions& options);

  /// The first rule that matches; then keep patterns; then the option for the tensor's role. kOther
  /// is always kept.
  Result<QuantizeSpec> spec_for(const std::string& name, LayerRole role) const;

  /// True when a rule or keep pattern matches.
  bool names(const std::string& name) const;
  /// Formats of some layers in place of the option, by tensor name. Rules come first all the same.
  void set_specs(std::map<std::string, QuantizeSpec> specs) { specs_ = std::move(specs); }

 private:
  Result<const RecipeRule*> first_match(const std::string& name) const;

  std::vector<RecipeRule> rules_;
  QuantizeSpec linear_, embedding_, head_;
  std::map<std::string, QuantizeSpec> specs_;
};

/// Parses the part of a rule after the regex.
Result<QuantizeSpec> parse_quantize_spec(const std::vector<std::string>& words, const std::string& where);

/// The scaling a spec asks for.
Scaling scaling_of(const QuantizeSpec& spec);

}  // namespace lowbit
