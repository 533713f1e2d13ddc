#include "gradwire/hook/powersgd_options.h"

#include "gradwire/base/error.h"
#include "gradwire/base/text.h"
#include "gradwire/hook/powersgd_hook.h"

namespace gradwire {
namespace {

constexpr const char* kBatched = "batched_powersgd";

struct Range {
  double least = -std::numeric_limits<double>::infinity();
  double most = std::numeric_limits<double>::infinity();
};

// The only list of options: calls visit(member, name, help, range).
template <class Struct, class Visit>
void each_option(const std::string& hook, Struct& options, Visit visit) {
  visit(
      options.rank,
      "rank",
      "rank of what is sent in place of a matrix",
      Range{1, 1024});
  visit(
      options.start,
      "start",
      "steps at the start that average without compression",
      Range{0});
  visit(
      options.min_compression_rate,
      "min_compression_rate",
      "a matrix that would shrink by less is sent in full",
      Range{1e-6});
  visit(
      options.ef,
      "ef",
      "error feedback: what is lost is added to the next gradient",
      Range{});
  visit(
      options.warm_start,
      "warm_start",
      "each step starts from the last Q; off: from a new one",
      Range{});
  visit(
      options.epsilon,
      "epsilon",
      "added to the length of a column of P before dividing by it",
      Range{0});
  visit(options.seed, "seed", "seed of the first Q", Range{});
  visit(
      options.stats,
      "stats",
      "steps between measurements of the residuals, 0: never",
      Range{0});
  if (hook != kBatched) {
    visit(
        options.batch,
        "batch",
        "matrices of one shape are sent side by side",
        Range{});
  }
  visit(
      options.iterations,
      "iterations",
      "how many times a step sends P and Q",
      Range{1, 16});
  visit(
      options.alternate,
      "alternate",
      "send P in one step and Q in the next: half the bytes",
      Range{});
  visit(
      options.refresh,
      "refresh",
      "steps after which Q is drawn anew, 0: never",
      Range{0});
  visit(options.memory, "memory", "type in which residuals are kept", Range{});
}

void take(const Options& from, const char* name, std::int64_t& to) {
  to = from.integer(name);
}
void take(const Options& from, const char* name, double& to) {
  to = from.number(name);
}
void take(const Options& from, const char* name, bool& to) {
  to = from.flag(name);
}
void take(const Options& from, const char* name, std::string& to) {
  to = from.word(name);
}

}  // namespace

std::vector<Option> powersgd_options(const std::string& hook) {
  std::vector<Option> declared;
  const PowerSgdOptions defaults;
  each_option(
      hook,
      defaults,
      [&](const auto& value, const char* name, const char* help, Range range) {
        declared.push_back(
            {.name = name,
             .fallback = value,
             .help = help,
             .least = range.least,
             .most = range.most});
        if (declared.back().name == "memory") {
          declared.back().choices = {"fp32", "bf16", "fp16"};
        }
      });
  return declared;
}

PowerSgdOptions to_powersgd_options(
    const std::string& hook, const Options& options) {
  PowerSgdOptions result;
  each_option(
      hook, result, [&](auto& value, const char* name, const char*, Range) {
        take(options, name, value);
      });
  const auto refuse = [&](const auto&... why) {
    fail("hook", "'", hook, ":alternate=on' ", why...);
  };
  if (result.alternate && !result.warm_start) {
    refuse("goes on from the step before, expected warm_start=on");
  }
  if (result.alternate && result.iterations > 1) {
    refuse("sends P or Q once a step, expected iterations=1");
  }
  if (result.alternate && result.epsilon > 0) {
    refuse("divides by no length within a step, expected epsilon=0");
  }
  return result;
}

std::string PowerSgdOptions::spec(const std::string& hook) const {
  const PowerSgdOptions defaults;
  std::vector<std::string> given;
  std::vector<Option::Value> usual;
  each_option(
      hook, defaults, [&](const auto& value, const char*, const char*, Range) {
        usual.push_back(value);
      });
  auto fallback = usual.begin();
  each_option(
      hook,
      *this,
      [&](const auto& value, const char* name, const char*, Range) {
        if (Option::Value(value) != *fallback++) {
          given.push_back(concat(name, "=", to_string(Option::Value(value))));
        }
      });
  return given.empty() ? hook : concat(hook, ":", join(given, ","));
}

}  // namespace gradwire
