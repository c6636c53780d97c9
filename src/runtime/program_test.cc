// Every backend's program must give the reference's bits, with taps and without, whole and in ranges.

#include <gtest/gtest.h>

#include "runtime/program_checks.h"
#include "runtime/program_window_checks.h"

namespace lowbit {
namespace {

using namespace program_checks;  // NOLINT

TEST(Program, EveryBackendGivesTheReferencesBits) {
  ThreadPool pool(2);
  for (const Variant& v : host_variants()) {
    const MemorySource source = make_random_model(v.model);
    const auto ref = make_ref_backend(pool);
    const auto by_definition = load(source, v.x, *ref);
    Seen wanted_rows, none;
    const std::vector<float> want = run(*ref, *by_definition, How::kWhole, none);
    EXPECT_TRUE(same_bits(run(*ref, *by_definition, How::kObserved, wanted_rows), want)) << v.name;
    EXPECT_EQ(wanted_rows.size(), by_definition->spec.blocks.size() * kInputRoles + 1) << v.name;
    for (int i = 0; i <= int(best_isa()); ++i) {
      if (!isa_available(Isa(i))) continue;
      const auto cpu = make_cpu_backend(Isa(i), pool, false);
      const auto model = load(source, v.x, *cpu);
      const std::string at = std::string(v.name) + ", " + isa_name(Isa(i));
      for (const How how : {How::kWhole, How::kObserved, How::kInRanges}) {
        Seen rows;
        EXPECT_TRUE(same_bits(run(*cpu, *model, how, rows), want)) << at << ", " << int(how);
        if (how == How::kWhole) continue;
        for (const auto& [tap, values] : wanted_rows)
          EXPECT_TRUE(same_bits(rows[tap], values)) << at << ", tap " << tap;
      }
    }
    Seen rows;
    EXPECT_TRUE(same_bits(run(*ref, *by_definition, How::kInRanges, rows), want)) << v.name;
  }
}

TEST(Program, SequencesThatShareAPool) {
  ThreadPool pool(2);
  for (const Variant& v : host_variants())
    expect_reference_sessions(*make_cpu_backend(best_isa(), pool, false), v, pool, 14);
}

TEST(Program, WindowsGivePagesBack) {
  ThreadPool pool(2);
  expect_windows_give_pages_back(*make_cpu_backend(best_isa(), pool, false), pool);
}

TEST(Program, AStepThatNobodyHasIsRefusedByName) {
  ThreadPool pool(1);
  const MemorySource source = make_random_model({});
  const auto ref = make_ref_backend(pool);
  const auto cpu = make_cpu_backend(best_isa(), pool, false);
  for (Backend* backend : {ref.get(), cpu.get()}) {
    auto model = load(source, {}, *backend);
    for (Step& step : model->steps)
      if (auto* glu = std::get_if<GluStep>(&step)) glu->glu = Glu::kGeluTanh;
    const auto refused = backend->compile(model->steps, {});
    ASSERT_FALSE(refused.has_value());
    EXPECT_EQ(refused.error().code, ErrorCode::kUnsupported);
    EXPECT_NE(refused.error().message().find("GELU"), std::string::npos) << refused.error().message();
  }
}

}  // namespace
}  // namespace lowbit
