#include "apps/gradwire/bench/measure.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/gradwire/bench/peer.h"
#include "apps/gradwire/shared/bar.h"
#include "apps/gradwire/shared/models.h"
#include "gradwire/base/error.h"
#include "gradwire/base/spec.h"
#include "gradwire/hook/registry.h"
#include "gradwire/launch/spawn.h"

namespace gradwire::apps {
namespace {

using nlohmann::json;

std::int64_t count_parameters(const std::string& model) {
  std::int64_t count = 0;
  for (const auto& parameter :
       make_model(model, {kBenchImageSide, kBenchImageSide, 10})
           ->parameters()) {
    count += parameter.numel();
  }
  return count;
}

// Step by step the largest (or smallest) value that any rank has in `key`.
std::vector<double> over_ranks(
    const json& answers, const char* key, bool largest) {
  std::vector<double> result = answers.at(0).at(key);
  for (const auto& answer : answers) {
    const std::vector<double> values = answer.at(key);
    for (std::size_t i = 0; i < result.size(); ++i) {
      result[i] = largest ? std::max(result[i], values.at(i))
                          : std::min(result[i], values.at(i));
    }
  }
  return result;
}

void append(std::vector<double>& to, const std::vector<double>& values) {
  to.insert(to.end(), values.begin(), values.end());
}

}  // namespace

Measurement::Measurement(
    const BenchOptions& options,
    const std::vector<std::string>& hooks,
    const std::vector<std::string>& attached)
    : options_(options) {
  report_.options = options;
  report_.parameters = count_parameters(options.model);
  for (const auto& hook : hooks) {
    add_ours(hook, false);
  }
  for (const char* needed : {"none", "noop"}) {
    if (std::ranges::count(hooks, needed) == 0) {
      add_ours(needed, true);
    }
  }
  ours_ = turns_.size();
  if (!options.peer.empty()) {
    add_peers(hooks);
    add_attached(attached);
  }
}

void Measurement::add_ours(const std::string& hook, bool hidden) {
  turns_.push_back(
      {.hook = hook,
       .torch = {},
       .hidden = hidden,
       .local = HookSpec(hook).stays_local()});
}

void Measurement::add_peers(const std::vector<std::string>& hooks) {
  std::vector<std::string> names{"none"};
  for (const auto& hook : hooks) {
    const auto peer = peer_hook(hook);
    const auto name = parse_spec(hook).name;
    if (!peer.why_not.empty()) {
      report_.peer_lacks.emplace_back(hook, peer.why_not);
    } else if (
        !peer.torch_name.empty() && std::ranges::count(names, name) == 0) {
      names.push_back(name);
    }
  }
  for (const auto& name : names) {
    peer_hooks_.push_back(peer_hook(name).torch_name);
    turns_.push_back({.hook = name, .torch = "?"});
  }
}

void Measurement::add_attached(const std::vector<std::string>& hooks) {
  for (const auto& hook : hooks) {
    peer_hooks_.push_back(concat(kAttach, hook));
    turns_.push_back(
        {.hook = hook,
         .torch = "?",
         .attached = true,
         .local = HookSpec(hook).stays_local()});
  }
}

BenchReport Measurement::run(const std::vector<Link>& links) {
  const auto turns = turns_.size() * links.size() *
                     static_cast<std::size_t>(options_.rounds + 1);
  Bar bar(true, static_cast<std::int64_t>(turns), 0);
  std::int64_t done = 0;
  for (const auto& link : links) {
    connect(link);
    const auto result = measure(link, [&] {
      const auto per_round = static_cast<std::int64_t>(turns_.size());
      const auto round = done % (per_round * (options_.rounds + 1)) / per_round;
      ++done;
      bar.update(
          done,
          concat(
              link.name,
              round == 0 ? std::string("  warm-up")
                         : concat("  round ", round, "/", options_.rounds)));
    });
    report_.links.push_back(result);
  }
  bar.finish();
  own_ranks_.reset();
  peer_ranks_.reset();
  return report_;
}

void Measurement::connect(const Link& link) {
  if (link.shaped()) {
    if (network_) {
      network_->shape(link);
    } else {
      network_ = std::make_unique<ShapedNetwork>(
          options_.nproc, link, options_.congestion);
    }
  }
  if (own_ranks_ && on_shaped_link_ == link.shaped()) {
    return;
  }
  own_ranks_.reset();
  peer_ranks_.reset();
  on_shaped_link_ = link.shaped();
  start_ranks(link);
  for (std::size_t turn = 0; turn < turns_.size(); ++turn) {
    verify(turn, link);
  }
}

std::vector<std::string> Measurement::rank_command() const {
  std::vector<std::string> command{
      std::filesystem::read_symlink("/proc/self/exe"),
      "bench-rank",
      "--model",
      options_.model,
      "--batch",
      concat(options_.batch),
      "--bucket-mb",
      concat(options_.bucket_mb)};
  for (std::size_t i = 0; i < ours_; ++i) {
    command.insert(command.end(), {"--hook", turns_[i].hook});
  }
  return command;
}

RankProgram Measurement::place(
    std::vector<std::string> command, int rank, int port) {
  const bool shaped = on_shaped_link_;
  RankProgram program;
  program.environment = launch::rank_environment(
      rank,
      options_.nproc,
      shaped ? ShapedNetwork::address(0) : "127.0.0.1",
      port);
  program.environment["GLOO_SOCKET_IFNAME"] =
      shaped ? ShapedNetwork::kInterface : "lo";
  // This process decides how long ranks may take; they must not give up
  // before it does.
  program.environment["GRADWIRE_TIMEOUT_S"] = "86400";
  if (shaped) {
    program.command = network_->enter(rank);
  }
  program.command.insert(program.command.end(), command.begin(), command.end());
  return program;
}

void Measurement::start_ranks(const Link& link) {
  // Nothing else runs on the hosts of a shaped network, so any port is free.
  constexpr int kPort = 29400;
  const auto start =
      [&](const char* name, const std::vector<std::string>& command, int port) {
        std::vector<RankProgram> programs;
        for (int rank = 0; rank < options_.nproc; ++rank) {
          programs.push_back(place(command, rank, port));
        }
        return std::make_unique<RankSet>(name, programs);
      };
  const auto port = [&](int offset) {
    return link.shaped() ? kPort + offset : launch::free_port();
  };
  own_ranks_ = start("gradwire", rank_command(), port(0));
  if (ours_ < turns_.size()) {
    peer_ranks_ =
        start("PyTorch", peer_command(options_, peer_hooks_), port(1));
  }
}

json Measurement::ask(
    std::size_t turn, const std::string& verb, int steps, Timeout timeout) {
  auto& ranks = of_peer(turn) ? *peer_ranks_ : *own_ranks_;
  const auto index = of_peer(turn) ? turn - ours_ : turn;
  return ranks.ask(
      concat(verb, " ", index, steps > 0 ? concat(" ", steps) : ""), timeout);
}

void Measurement::verify(std::size_t turn, const Link& link) {
  // The first turn also waits for ranks to start and to share their weights.
  const json answers = ask(turn, "verify", 0, timeout(link, 2 * turns_.size()));
  auto& series = turns_[turn];
  series.relative_error = 0;
  series.identical = true;
  for (const auto& answer : answers) {
    const auto& error = answer.at("relative_error");
    series.relative_error = std::max(
        error.is_number() ? error.get<double>() : INFINITY,
        series.relative_error);
    series.identical = series.identical &&
                       answer.at("fingerprint") == answers[0].at("fingerprint");
  }
  if (of_peer(turn)) {
    series.torch = answers[0].at("torch");
  }
}

void Measurement::take_turn(
    Series& series, std::size_t turn, const Link& link) {
  const json answers =
      ask(turn,
          "run",
          options_.steps,
          timeout(link, static_cast<std::size_t>(options_.steps)));
  series.step_ms.push_back(over_ranks(answers, "step_ms", true));
  if (!of_peer(turn)) {
    append(series.exposed_ms, over_ranks(answers, "exposed_ms", false));
    append(
        series.first_bucket_ms, over_ranks(answers, "first_bucket_ms", true));
    const json& sent = answers[0].at("sent");
    series.sent = {sent.at("payload"), sent.at("metadata")};
    series.compression_ratio = answers[0].at("compression_ratio");
    series.residual_norm = answers[0].at("residual_norm");
    series.by_parameter = answers[0].at("by_parameter");
    // `verify` checked the first step. These ran with the buckets that are
    // timed.
    for (const auto& answer : answers) {
      series.identical = series.identical && answer.at("fingerprint") ==
                                                 answers[0].at("fingerprint");
    }
  }
}

LinkResult Measurement::measure(
    const Link& link, const std::function<void()>& on_turn) {
  LinkResult result{link, turns_};
  for (std::size_t turn = 0; turn < turns_.size(); ++turn) {
    const auto steps = options_.warmup;
    ask(turn, "run", steps, timeout(link, static_cast<std::size_t>(steps)));
    on_turn();
  }
  for (int round = 0; round < options_.rounds; ++round) {
    for (std::size_t i = 0; i < turns_.size(); ++i) {
      const auto turn = (i + static_cast<std::size_t>(round)) % turns_.size();
      take_turn(result.series[turn], turn, link);
      on_turn();
    }
  }
  return result;
}

Measurement::Timeout Measurement::timeout(
    const Link& link, std::size_t steps) const {
  double seconds = options_.timeout_s;
  if (seconds == 0) {
    // A step sends less than twice the gradient. A rank that needs ten times as
    // long as the link does for that hangs.
    const double bytes = 8.0 * static_cast<double>(report_.parameters);
    const double sending =
        link.shaped() ? bytes / link.bytes_per_ms() / 1e3 : bytes / 1e8;
    seconds = 120 + 10 * sending * static_cast<double>(steps);
  }
  return Timeout(static_cast<std::int64_t>(1e3 * seconds));
}

}  // namespace gradwire::apps
