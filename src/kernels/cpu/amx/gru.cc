#include "kernels/cpu/avx512/gru_simd.h"

namespace lowbit {

using AmxGruSimd = GruTileSimd<HardwareTiles>;

constinit const GruKernel kAmxGru = {"gru_cell__amx_32x32",         "amx",
                                     gru_packed_bytes<AmxGruSimd>,  gru_pack<AmxGruSimd>,
                                     gru_scratch_bytes<AmxGruSimd>, gru_input<AmxGruSimd>,
                                     gru_step<AmxGruSimd>};

}  // namespace lowbit
