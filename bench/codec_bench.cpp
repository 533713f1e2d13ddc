// Codecs against memcpy of as many elements in the same run, one thread. Every
// line reports bytes touched per second: what the operation must read and write
// at least, scales left out.

#include <benchmark/benchmark.h>
#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "gradwire/codec/codec.h"

namespace {

using gradwire::codec::Codec;
using gradwire::codec::Segments;

constexpr std::size_t kRanks = 4;

// In huge pages where the system gives some: how small ones happen to fall into
// the sets of a cache makes a third of a difference from run to run.
template <class T>
class Buffer {
 public:
  explicit Buffer(std::size_t count) : count_(count) {
    constexpr std::size_t kPage = std::size_t{2} << 20;
    const std::size_t bytes = (count * sizeof(T) + kPage - 1) / kPage * kPage;
    data_ = static_cast<T*>(std::aligned_alloc(kPage, bytes));
    madvise(data_, bytes, MADV_HUGEPAGE);
    std::memset(data_, 0, bytes);
  }
  ~Buffer() {
    std::free(data_);
  }
  Buffer(const Buffer&) = delete;

  T* data() {
    return data_;
  }
  std::span<T> span() {
    return {data_, count_};
  }

 private:
  T* data_;
  std::size_t count_;
};

void fill(Buffer<float>& buffer, std::uint32_t seed) {
  std::minstd_rand random(seed);
  for (float& value : buffer.span()) {
    value = static_cast<float>(random()) / 1e9f - 1.07f;
  }
}

void report(benchmark::State& state, double bytes_per_elem, double base) {
  const auto elems = static_cast<double>(state.range(0));
  state.counters["GB/s"] = benchmark::Counter(
      elems * bytes_per_elem * 1e-9,
      benchmark::Counter::kIsIterationInvariantRate);
  state.counters["bytes/elem"] = base;
}

void copy(benchmark::State& state) {
  const auto n = static_cast<std::size_t>(state.range(0));
  Buffer<float> from(n);
  Buffer<float> to(n);
  fill(from, 1);
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), n * sizeof(float));
    benchmark::ClobberMemory();
  }
  report(state, 8, 8);
}

// What all the operations of a codec need.
struct Fixture {
  Fixture(const std::string& spec, std::int64_t n)
      : codec(gradwire::codec::make_codec(spec)),
        segments{{n, 1, 0}},
        values(n),
        residual(n),
        next(n),
        message_bytes(codec.message_bytes(segments)),
        code_bytes(
            static_cast<double>(codec.message_parts(segments).payload) /
            static_cast<double>(n)) {
    fill(values, 2);
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      messages.push_back(std::make_unique<Buffer<std::uint8_t>>(message_bytes));
      codec.encode(segments, values.data(), messages.back()->span());
      inputs.push_back(messages.back()->span());
    }
  }

  Codec codec;
  Segments segments;
  Buffer<float> values;
  Buffer<float> residual;
  Buffer<float> next;
  std::size_t message_bytes;
  double code_bytes;
  std::vector<std::unique_ptr<Buffer<std::uint8_t>>> messages;
  std::vector<Codec::ConstBytes> inputs;
};

void encode(benchmark::State& state, const std::string& spec) {
  Fixture f(spec, state.range(0));
  for (auto _ : state) {
    f.codec.encode(f.segments, f.values.data(), f.messages[0]->span());
    benchmark::ClobberMemory();
  }
  report(state, 4 + f.code_bytes, 4 + f.code_bytes);
}

void encode_with_feedback(benchmark::State& state, const std::string& spec) {
  Fixture f(spec, state.range(0));
  for (auto _ : state) {
    f.codec.encode(
        f.segments,
        f.values.data(),
        f.messages[0]->span(),
        {f.residual.data(), f.next.data()});
    benchmark::ClobberMemory();
  }
  report(state, 12 + f.code_bytes, 12 + f.code_bytes);
}

void decode(benchmark::State& state, const std::string& spec) {
  Fixture f(spec, state.range(0));
  for (auto _ : state) {
    f.codec.decode(f.segments, {&f.inputs[0], 1}, f.values.data());
    benchmark::ClobberMemory();
  }
  report(state, 4 + f.code_bytes, 4 + f.code_bytes);
}

void decode_accumulate(benchmark::State& state, const std::string& spec) {
  Fixture f(spec, state.range(0));
  for (auto _ : state) {
    f.codec.decode(f.segments, f.inputs, f.values.data(), kRanks);
    benchmark::ClobberMemory();
  }
  report(state, 4 + kRanks * f.code_bytes, 4 + kRanks * f.code_bytes);
}

void reduce_and_encode(benchmark::State& state, const std::string& spec) {
  Fixture f(spec, state.range(0));
  Buffer<std::uint8_t> out(f.message_bytes);
  for (auto _ : state) {
    f.codec.reduce(f.segments, f.inputs, kRanks, out.span());
    benchmark::ClobberMemory();
  }
  report(state, (kRanks + 1) * f.code_bytes, (kRanks + 1) * f.code_bytes);
}

using Operation = void (*)(benchmark::State&, const std::string&);

void add(const std::string& name, Operation run, const std::string& spec) {
  benchmark::RegisterBenchmark(
      (name + "/" + spec).c_str(),
      [run, spec](benchmark::State& state) { run(state, spec); })
      ->Arg(64 << 10)
      ->Arg(6300000)
      ->Arg(64 << 20);
}

}  // namespace

int main(int argc, char** argv) {
  benchmark::RegisterBenchmark("memcpy", copy)
      ->Arg(64 << 10)
      ->Arg(6300000)
      ->Arg(64 << 20);
  for (const auto& info : gradwire::codec::codecs()) {
    add("encode", encode, info.name);
    add("encode_with_feedback", encode_with_feedback, info.name);
    add("decode", decode, info.name);
    add("decode_accumulate_4", decode_accumulate, info.name);
    add("reduce_and_encode_4", reduce_and_encode, info.name);
  }
  benchmark::Initialize(&argc, argv);
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
