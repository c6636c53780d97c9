// Each CASE must not compile: a wrong format is found before it runs. CASE 0 is right and must compile.
#include <cstddef>

#include "format/formats.h"

using namespace lowbit;

#if CASE == 1  // two codes share bits
struct Overlapping {
  static constexpr int kElems = 16, kWords = 1, kPackBytes = 4;
  static constexpr BitPos at(int e, int b) { return {0, (2 * e + b) % 31}; }
};
template struct Proof<Format<OffsetBinary<2>, Overlapping>>;
#elif CASE == 2  // a bit outside the pack
struct Outside {
  static constexpr int kElems = 16, kWords = 1, kPackBytes = 4;
  static constexpr BitPos at(int e, int b) { return {1, 2 * e + b}; }
};
template struct Proof<Format<OffsetBinary<2>, Outside>>;
#elif CASE == 3  // a codec whose code() does not invert value()
struct Lossy : OffsetBinary<2> {
  static constexpr unsigned code(int v) { return unsigned(v + 1) & 3u; }
};
template struct Proof<Format<Lossy, Linear<2>>>;
#elif CASE == 4  // an unpack of its own that differs from the packing
struct WrongUnpack : Format<OffsetBinary<2>, Transposed4x4> {
  static constexpr void unpack(const uint8_t* pack, uint8_t* codes) {
    Format<OffsetBinary<2>, Linear<2>>::unpack(pack, codes);
  }
};
template struct Proof<WrongUnpack>;
#elif CASE == 5  // one byte for five digits of a base too large
struct Base4x5 {
  static constexpr int kElems = 5, kPackBytes = 1;
  static constexpr unsigned get(const uint8_t* pack, int e) {
    return e == 4 ? 0u : (unsigned(pack[0]) >> (2 * e)) & 3u;
  }
  static constexpr void set(uint8_t* pack, int e, unsigned code) {
    if (e < 4) pack[0] = uint8_t((pack[0] & ~(3u << (2 * e))) | code << (2 * e));
  }
};
template struct Proof<Format<OffsetBinary<2>, Base4x5>>;
#else
template struct Proof<Format<OffsetBinary<2>, Transposed4x4>>;
#endif
