#pragma once
// Shared by the verbs of `lowbit gru`: sequences from files, options.

#include <string>
#include <vector>

#include "lowbit/gru.h"
#include "verbs.h"

namespace lowbit::cli {

/// An .npy of [T, N, C] (or [T, C], one sequence) as a GruInput; keeps the numbers.
struct Sequence {
  GruArray array;
  std::vector<int64_t> lengths;
  std::vector<float> h0;
  bool batch_first = false;

  GruInput input() const {
    const auto& s = array.shape;
    GruInput in;
    in.batch_first = batch_first;
    in.steps = s.size() == 2 ? s[0] : batch_first ? s[1] : s[0];
    in.batch = s.size() == 2 ? 1 : batch_first ? s[0] : s[1];
    in.x = array.data;
    in.h0 = h0;
    in.lengths = lengths;
    return in;
  }
};

struct InputArguments {
  std::string h0, lengths;
  bool batch_first = false;
};

/// Errors: as read_float_array; kShapeMismatch, kInvalidArgument (lengths that are no whole numbers).
/// `batch_first`: the network says so; the option need not.
Result<Sequence> read_sequence(const std::string& path, const InputArguments& options, bool batch_first);

struct DataArguments {
  std::vector<std::string> files;
  InputArguments input;
};

Result<std::vector<Sequence>> read_data(const DataArguments& data, bool batch_first);
std::vector<GruInput> inputs_of(const std::vector<Sequence>& sequences);

/// load_gru, with a note that names what of the file is left out.
Result<GruNetwork> load_network(Console& console, const std::string& net, const GruLoadOptions& options);

void add_network(Verb& verb, std::string& net, GruLoadOptions& options);
void add_data(Verb& verb, DataArguments& data, bool required);
void add_input(Verb& verb, std::string& path, InputArguments& input);
void add_model(Verb& verb, std::string& model);
void add_formats(Verb& verb, std::string& preset, std::string& bits);
/// The preset, with what the file `bits` replaces.
Result<GruConfig> chosen_config(const std::string& preset, const std::string& bits);

// The verbs, by file.
void add_gru_calibrate(Verb& gru, Invocation& invocation);  // gru_quantize.cc
void add_gru_quantize(Verb& gru, Invocation& invocation);
void add_gru_encodings(Verb& gru, Invocation& invocation);
void add_gru_search(Verb& gru, Invocation& invocation);  // gru_search.cc
void add_gru_tune(Verb& gru, Invocation& invocation);    // gru_tune.cc
void add_gru_run(Verb& gru, Invocation& invocation);     // gru_run.cc
void add_gru_verify(Verb& gru, Invocation& invocation);

}  // namespace lowbit::cli
