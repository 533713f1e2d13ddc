#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

// What a fuzzer made up, read from front to back. Behind the end it is zeros,
// for bytes repeats of the last ones read: short inputs fill long messages.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size) : left_(data, size) {}

  std::uint8_t byte() {
    if (left_.empty()) {
      return 0;
    }
    const std::uint8_t value = left_[0];
    left_ = left_.subspan(1);
    return value;
  }
  std::uint16_t number() {
    const std::uint16_t low = byte();
    return static_cast<std::uint16_t>(low | byte() << 8);
  }
  std::vector<std::uint8_t> bytes(std::size_t count) {
    std::vector<std::uint8_t> result(count);
    // Any period will do that is no multiple of a block's length.
    constexpr std::size_t kPeriod = 37;
    for (std::size_t i = 0; i < count; ++i) {
      const bool repeat = left_.empty() && i >= kPeriod;
      result[i] = repeat ? result[i - kPeriod] : byte();
    }
    return result;
  }
  std::vector<float> floats(std::size_t count) {
    std::vector<float> result(count);
    const std::vector<std::uint8_t> raw = bytes(count * sizeof(float));
    if (count > 0) {
      std::memcpy(result.data(), raw.data(), raw.size());
    }
    return result;
  }

 private:
  std::span<const std::uint8_t> left_;
};
