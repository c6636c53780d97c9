#include "kernels/cpu/avx512/gru_simd.h"

namespace lowbit {

constinit const GruKernel kAvx512Gru = {
    "gru_cell__avx512_64x4",    "avx512",           gru_packed_bytes<GruSimd>, gru_pack<GruSimd>,
    gru_scratch_bytes<GruSimd>, gru_input<GruSimd>, gru_step<GruSimd>,         gru_ahead_rows<GruSimd>,
    gru_step_ahead<GruSimd>};

}  // namespace lowbit
