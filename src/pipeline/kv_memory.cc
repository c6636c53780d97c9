#include "lowbit/kv_memory.h"

#include <utility>

#include "base/try.h"
#include "lowbit/quantize.h"
#include "model/model_spec.h"
#include "model/source.h"
#include "runtime/transformer.h"

namespace lowbit {
namespace {

/// The most positions whose bytes are `room` or less.
int64_t positions_in(const KvPool& pool, int64_t room) {
  int64_t fit = 0, more = int64_t{1} << 40;
  while (more - fit > 1) {
    const int64_t middle = fit + (more - fit) / 2;
    (pool.bytes_of(middle) <= room ? fit : more) = middle;
  }
  return fit;
}

}  // namespace

Result<KvMemory> kv_memory(const std::string& model) {
  LOWBIT_TRY_ASSIGN(const std::string path, resolve_model(model));
  LOWBIT_TRY_ASSIGN(const auto source, open_source(path));
  LOWBIT_TRY_ASSIGN(const ModelSpec spec, executable_spec_of(*source));
  KvMemory memory{path, spec.max_positions, {}};
  for (const char* name : {"f16", "int8", "fp8", "int4", "k4v2", "int3", "int2"}) {
    LOWBIT_TRY_ASSIGN(const KvFormat format, parse_kv_format(name, kDefaultResidual));
    auto pool = KvPool::make(kv_groups_of(spec, format), 1);
    if (!pool && pool.error().code == ErrorCode::kUnsupported) continue;  // heads that it does not pack
    LOWBIT_TRY(pool);
    int64_t elements = 0, bytes = 0;  // of a page
    for (size_t g = 0; g < (*pool)->groups().size(); ++g) {
      const KvGroup& group = (*pool)->groups()[g];
      elements += 2 * kKvPage * group.row_elems() * int64_t(group.layers.size());
      bytes += (*pool)->page_bytes(format.packed() ? (*pool)->packed_store(int(g)) : int(g));
    }
    memory.kv.push_back({name, 8.0 * double(bytes) / double(elements), (*pool)->bytes_of(spec.max_positions),
                         positions_in(**pool, int64_t{1} << 30)});
  }
  return memory;
}

}  // namespace lowbit
