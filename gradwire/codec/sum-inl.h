// Private to the codecs: sums a block of several messages, in the order of the
// messages.

#if defined(GRADWIRE_CODEC_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef GRADWIRE_CODEC_SUM_INL_H_
#undef GRADWIRE_CODEC_SUM_INL_H_
#else
#define GRADWIRE_CODEC_SUM_INL_H_
#endif

#include <cmath>
#include <utility>

#include "gradwire/codec/blocks-inl.h"

HWY_BEFORE_NAMESPACE();
namespace gradwire::codec::HWY_NAMESPACE {

using Messages = std::span<const std::span<const std::uint8_t>>;

// Up to this many messages are summed in registers, more of them in a tile.
inline constexpr std::size_t kMostTogether = 4;

// The kCount of the Sum for these messages.
HWY_INLINE std::size_t sum_kind(Messages messages) {
  return messages.size() <= kMostTogether ? messages.size() : 0;
}

// A sum is finite if bounds add up to less than this: rounding errors are far
// smaller than the rest.
inline constexpr float kSurelyFinite = 0x1p127f;

// The sum of exactly kCount messages.
template <class Format, std::size_t kCount>
class Sum {
 public:
  // `scale`: where the block's scale is.
  HWY_INLINE Sum(Messages messages, std::size_t scale)
      : Sum(messages, scale, std::make_index_sequence<kCount>()) {}

  // Hands finish(sum, i, count, whole) the sum of the n codes from `codes` on.
  template <class Finish>
  HWY_INLINE void tile(
      std::size_t codes, std::size_t n, const Finish& finish) const {
    tile(codes, n, finish, std::make_index_sequence<kCount>());
  }

  HWY_INLINE bool is_surely_finite() const {
    float bound = 0;
    for (const Decoder& decoder : decoders_) {
      bound += decoder.bound();
    }
    return bound < kSurelyFinite;
  }

 private:
  using Decoder = typename Format::Decoder;
  using Stored = typename Format::Stored;

  template <std::size_t... k>
  HWY_INLINE Sum(
      Messages messages, std::size_t scale, std::index_sequence<k...>)
      : messages_{messages[k].data()...},
        decoders_{Decoder(get_scale<Format>(messages_[k] + scale))...} {}

  template <class Finish, std::size_t... k>
  HWY_INLINE void tile(
      std::size_t codes,
      std::size_t n,
      const Finish& finish,
      std::index_sequence<k...>) const {
    std::array<TileCodes<Format>, kCount> unpacked;
    const std::array<const Stored*, kCount> from{
        unpacked[k].read(messages_[k] + codes, n)...};
    const std::array<Decoder, kCount> decoders = decoders_;
    each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
      Floats sum = with_codes<whole.value>(
          from[0] + i, count, [&](const Stored* at) HWY_ATTR {
            return decoders[0].get(at);
          });
      const auto add = [&](const Decoder& decoder, const Stored* one) HWY_ATTR {
        sum = with_codes<whole.value>(
            one + i, count, [&](const Stored* at) HWY_ATTR {
              return decoder.add(at, sum);
            });
      };
      ((k > 0 ? add(decoders[k], from[k]) : void()), ...);
      finish(sum, i, count, whole);
    });
  }

  std::array<const std::uint8_t*, kCount> messages_;
  std::array<Decoder, kCount> decoders_;
};

// The sum of any number of messages.
template <class Format>
class Sum<Format, 0> {
 public:
  Sum(Messages messages, std::size_t scale)
      : messages_(messages), scale_(scale) {}

  template <class Finish>
  HWY_INLINE void tile(
      std::size_t codes, std::size_t n, const Finish& finish) const {
    // Starts from -0, which changes no sum. So the sum is as if it began with
    // the first message.
    HWY_ALIGN std::array<float, kTile> sums;
    sums.fill(messages_.empty() ? 0.0f : -0.0f);
    for (const auto& message : messages_) {
      add(message.data(), codes, n, sums.data());
    }
    each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
      finish(load<whole.value>(sums.data() + i, count), i, count, whole);
    });
  }

  HWY_INLINE bool is_surely_finite() const {
    float bound = 0;
    for (const auto& message : messages_) {
      bound += decoder(message.data()).bound();
    }
    return bound < kSurelyFinite;
  }

 private:
  using Decoder = typename Format::Decoder;
  using Stored = typename Format::Stored;

  HWY_INLINE Decoder decoder(const std::uint8_t* message) const {
    return Decoder(get_scale<Format>(message + scale_));
  }

  HWY_NOINLINE void add(
      const std::uint8_t* message,
      std::size_t codes,
      std::size_t n,
      float* sums) const {
    TileCodes<Format> unpacked;
    const Decoder one = decoder(message);
    const Stored* from = unpacked.read(message + codes, n);
    each_vector(n, [&](std::size_t i, std::size_t count, auto whole) HWY_ATTR {
      const Floats sum = load<whole.value>(sums + i, count);
      const Floats more = with_codes<whole.value>(
          from + i, count, [&](const Stored* at) HWY_ATTR {
            return one.add(at, sum);
          });
      store<whole.value, false>(more, sums + i, count);
    });
  }

  Messages messages_;
  std::size_t scale_;
};

// Divides by the number of ranks, with a product where that gives the same
// bits.
struct Divisor {
  float divisor;
  float reciprocal;
  bool exact;

  HWY_INLINE explicit Divisor(float value)
      : divisor(value), reciprocal(1 / value) {
    int exponent = 0;
    exact = std::frexp(value, &exponent) == 0.5f;
  }
  HWY_INLINE Floats apply(Floats v) const {
    const FloatTag d;
    return exact ? hn::Mul(v, hn::Set(d, reciprocal))
                 : hn::Div(v, hn::Set(d, divisor));
  }
};

}  // namespace gradwire::codec::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
