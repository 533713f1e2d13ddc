#include "apps/gradwire/bench/rpc/rpc.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <iomanip>
#include <iostream>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "apps/gradwire/bench/peer.h"
#include "apps/gradwire/bench/ranks.h"
#include "apps/gradwire/cli/ranges.h"
#include "apps/gradwire/cli/subcommand.h"
#include "apps/gradwire/shared/bar.h"
#include "gradwire/base/error.h"
#include "gradwire/base/files.h"
#include "gradwire/launch/spawn.h"
#include "peer_rpc_script.h"

namespace gradwire::apps {
namespace {

using nlohmann::json;

constexpr int kWorkers = 6;
constexpr std::chrono::seconds kPatience{300};

// One thing that is timed on one side.
struct Series {
  std::string verb;
  std::string side;
  // By round.
  std::vector<std::vector<double>> ms = {};
  double sum = 0;

  std::vector<double> medians() const {
    std::vector<double> result;
    for (const auto& round : ms) {
      result.push_back(median(round));
    }
    return result;
  }
  static double median(std::vector<double> values) {
    std::ranges::sort(values);
    return values.empty() ? NAN : values[values.size() / 2];
  }
};

constexpr const char* kOwn = "gradwire";
constexpr const char* kPeer = "PyTorch";

int count_of(const BenchRpcOptions& options, const std::string& verb) {
  const int share = verb == "large" ? 10 : verb == "hybrid" ? 50 : 1;
  return std::max(1, options.calls / share);
}

std::vector<RankProgram> programs(const std::vector<std::string>& command) {
  const int port = launch::free_port();
  const int rpc_port = launch::free_port();
  std::vector<RankProgram> result;
  for (int rank = 0; rank < kWorkers; ++rank) {
    RankProgram program{
        command, launch::rank_environment(rank, kWorkers, "127.0.0.1", port)};
    program.environment["GLOO_SOCKET_IFNAME"] = "lo";
    program.environment["TP_SOCKET_IFNAME"] = "lo";
    program.environment["GRADWIRE_RPC_PORT"] = concat(rpc_port);
    program.environment["OMP_NUM_THREADS"] = "1";
    result.push_back(std::move(program));
  }
  return result;
}

// TorchScript wants to read the source of what it compiles, from a file.
class PeerScriptFile {
 public:
  PeerScriptFile()
      : path_(
            std::filesystem::temp_directory_path() /
            concat("gradwire-peer-rpc-", getpid(), ".py")) {
    write_atomically(path_, kPeerRpcScript);
  }
  ~PeerScriptFile() {
    std::filesystem::remove(path_);
  }
  PeerScriptFile(const PeerScriptFile&) = delete;
  const std::string& path() const {
    return path_;
  }

 private:
  std::string path_;
};

class RpcMeasurement {
 public:
  explicit RpcMeasurement(const BenchRpcOptions& options) : options_(options) {
    own_.emplace(
        kOwn,
        programs(
            {std::filesystem::read_symlink("/proc/self/exe"),
             "bench-rpc-rank",
             "--transport",
             options.transport}));
    for (const char* verb : {"small", "large", "hybrid"}) {
      series_.push_back({verb, kOwn});
    }
    if (!options.peer.empty()) {
      peer_.emplace(
          kPeer,
          programs(
              {options.peer,
               "-W",
               "ignore",
               script_.path(),
               options.transport}));
      for (const char* verb : {"small", "script", "large", "hybrid"}) {
        series_.push_back({verb, kPeer});
      }
    }
  }

  std::vector<Series> run() {
    Bar bar(
        true,
        static_cast<std::int64_t>(series_.size()) * (options_.rounds + 1),
        0);
    std::int64_t done = 0;
    for (int round = 0; round <= options_.rounds; ++round) {
      for (std::size_t i = 0; i < series_.size(); ++i) {
        // Each round begins with another one; round 0 is the warm-up.
        auto& series =
            series_[(i + static_cast<std::size_t>(round)) % series_.size()];
        take_turn(series, round > 0);
        bar.update(++done, concat("round ", round, "/", options_.rounds));
      }
    }
    bar.finish();
    return series_;
  }

 private:
  // PyTorch's workers spin while they are idle, so the other side is stopped.
  void take_turn(Series& series, bool keep) {
    auto& ranks = series.side == kOwn ? *own_ : *peer_;
    auto* other = series.side == kOwn ? (peer_ ? &*peer_ : nullptr) : &*own_;
    if (other != nullptr && started_.size() == (peer_ ? 2 : 1)) {
      other->stop();
    }
    ranks.go_on();
    started_.insert(series.side);
    const json answer =
        ranks
            .ask(
                concat(series.verb, " ", count_of(options_, series.verb)),
                kPatience)
            .back();
    series.sum = answer.at("sum");
    if (keep) {
      series.ms.push_back(answer.at("ms"));
    }
  }

  BenchRpcOptions options_;
  // Sides that have answered once: before, they must not be stopped.
  std::set<std::string> started_;
  PeerScriptFile script_;
  std::optional<RankSet> own_;
  std::optional<RankSet> peer_;
  std::vector<Series> series_;
};

const Series* find(
    const std::vector<Series>& all,
    const std::string& verb,
    const std::string& side) {
  const auto found = std::ranges::find_if(all, [&](const Series& series) {
    return series.verb == verb && series.side == side;
  });
  return found == all.end() ? nullptr : &*found;
}

// How many times longer `other` takes, by round.
std::vector<double> ratios(const Series& other, const Series& own) {
  std::vector<double> result;
  const auto theirs = other.medians();
  const auto ours = own.medians();
  for (std::size_t i = 0; i < ours.size(); ++i) {
    result.push_back(theirs.at(i) / ours[i]);
  }
  return result;
}

json row_of(const std::vector<Series>& all, const Series& series) {
  const auto medians = series.medians();
  json row{
      {"what", series.verb},
      {"side", series.side},
      {"median_ms", Series::median(medians)},
      {"fastest_round_ms", std::ranges::min(medians)},
      {"slowest_round_ms", std::ranges::max(medians)},
      {"samples_ms", series.ms}};
  // Of Python's kinds of small call, each against our only one.
  const auto* own =
      find(all, series.verb == "script" ? "small" : series.verb, kOwn);
  if (series.side == kPeer && own != nullptr) {
    auto by_round = ratios(series, *own);
    row["times_gradwire"] = Series::median(by_round);
    row["times_gradwire_least"] = std::ranges::min(by_round);
    row["times_gradwire_most"] = std::ranges::max(by_round);
  }
  return row;
}

void print_table(const json& rows) {
  std::cout << std::left << std::setw(10) << "what" << std::setw(10) << "side"
            << std::right << std::setw(10) << "ms" << std::setw(18) << "rounds"
            << std::setw(22) << "x gradwire"
            << "\n";
  for (const auto& row : rows) {
    std::ostringstream spread;
    spread << std::fixed << std::setprecision(3)
           << row.at("fastest_round_ms").get<double>() << "-"
           << row.at("slowest_round_ms").get<double>();
    std::ostringstream ratio;
    if (row.contains("times_gradwire")) {
      ratio << std::fixed << std::setprecision(2)
            << row.at("times_gradwire").get<double>() << " ("
            << row.at("times_gradwire_least").get<double>() << "-"
            << row.at("times_gradwire_most").get<double>() << ")";
    }
    std::cout << std::left << std::setw(10) << row.at("what").get<std::string>()
              << std::setw(10) << row.at("side").get<std::string>()
              << std::right << std::setw(10) << std::fixed
              << std::setprecision(3) << row.at("median_ms").get<double>()
              << std::setw(18) << spread.str() << std::setw(22) << ratio.str()
              << "\n";
  }
}

bool same_results(const std::vector<Series>& all) {
  return std::ranges::all_of(all, [&](const Series& series) {
    const auto* own =
        find(all, series.verb == "script" ? "small" : series.verb, kOwn);
    return std::abs(series.sum - own->sum) <= 1e-5 * std::abs(own->sum);
  });
}

// Returns 0, or 1 when results differ.
int bench_rpc(const BenchRpcOptions& options) {
  check_range("rounds", options.rounds, 1, 100000);
  check_range("calls", options.calls, 1, 1000000);
  check_transport(options.transport);
  if (!options.json.empty()) {
    check_writable_file(options.json);
  }
  if (!options.peer.empty()) {
    check_python(options.peer);
  }
  const auto all = RpcMeasurement(options).run();
  json rows = json::array();
  for (const auto& series : all) {
    rows.push_back(row_of(all, series));
  }
  const bool same = same_results(all);
  print_table(rows);
  std::cout << "results " << (same ? "agree" : "DIFFER") << ", transport "
            << options.transport << ", " << options.rounds << " rounds of "
            << options.calls << " small calls" << std::endl;
  if (!options.json.empty()) {
    const json report{
        {"transport", options.transport},
        {"rounds", options.rounds},
        {"calls", options.calls},
        {"results_agree", same},
        {"rows", rows}};
    write_atomically(options.json, report.dump(1) + "\n");
  }
  return same ? 0 : 1;
}

void add_flags(Flags& flags, BenchRpcOptions& options) {
  flags.add("--rounds", options.rounds, "rounds, after one that warms up");
  flags.add(
      "--calls",
      options.calls,
      "small calls per round; a tenth as many large ones");
  flags.add("--transport", options.transport, "tcp or shm");
  flags.add(
      "--peer",
      options.peer,
      "a Python whose torch is measured in the same rounds");
  flags.add("--json", options.json, "file for rows and samples");
}

}  // namespace

Subcommand bench_rpc_command() {
  return {
      "bench rpc",
      "measure calls between workers and hybrid training",
      [](Flags& flags) -> Action {
        const auto options = std::make_shared<BenchRpcOptions>();
        add_flags(flags, *options);
        return [options](const auto&) { return bench_rpc(*options); };
      }};
}

}  // namespace gradwire::apps
