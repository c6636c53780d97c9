// The GRU on tiles in memory.

#include "kernels/cpu/avx512/gru_simd.h"
#include "tests/conformance/amx_emulated/table.h"
#include "tests/conformance/amx_emulated/tiles.h"

namespace lowbit {

using EmulatedGruSimd = GruTileSimd<EmulatedTiles>;

constinit const GruKernel kAmxEmulatedGru = {"gru_cell__amx_emulated_32x32",     "amx_emulated",
                                             gru_packed_bytes<EmulatedGruSimd>,  gru_pack<EmulatedGruSimd>,
                                             gru_scratch_bytes<EmulatedGruSimd>, gru_input<EmulatedGruSimd>,
                                             gru_step<EmulatedGruSimd>};

}  // namespace lowbit
