#include "apps/gradwire/train.h"

#include <cmath>
#include <iostream>

#include "apps/gradwire/checkpoint.h"
#include "apps/gradwire/data.h"
#include "apps/gradwire/models.h"
#include "apps/gradwire/ranges.h"
#include "apps/gradwire/run.h"
#include "gradwire/base/error.h"
#include "gradwire/base/files.h"
#include "gradwire/base/placement.h"
#include "gradwire/comm/init.h"
#include "gradwire/hook/registry.h"
#include "gradwire/launch/spawn.h"

namespace gradwire::apps {
namespace {

constexpr int kDefaultRanks = 2;

// Everything that can be wrong is said once, before ranks are started.
void check(const TrainOptions& options, int ranks) {
  check_range("nproc", ranks, 1, launch::kMostLocalRanks);
  check_range("epochs", options.epochs, 1, 100000);
  check_range<std::int64_t>("batch", options.batch, 1, 1 << 20);
  check_range("lr", options.lr, 1e-12, 1e3);
  check_range("momentum", options.momentum, 0.0, 1.0);
  check_range("threads", options.threads, 1, 1024);
  check_range<std::int64_t>("max-steps", options.max_steps, 0, 1LL << 40);
  check_range<std::int64_t>(
      "checkpoint-every", options.checkpoint_every, 0, 1LL << 40);
  if (options.batch < ranks) {
    fail(
        "app",
        "--batch is ",
        options.batch,
        " for ",
        ranks,
        " ranks, expected at least one sample a rank");
  }
  check_hook_spec(options.hook);
  check_model(options.model);
  check_dataset(options.data);
  if (options.checkpoint.empty() &&
      (options.resume || options.checkpoint_every > 0)) {
    fail(
        "app",
        options.resume ? "--resume" : "--checkpoint-every",
        " needs --checkpoint DIR");
  }
}

// Files are the business of rank 0, or of the process that starts the ranks.
void check_files(const TrainOptions& options) {
  if (!options.checkpoint.empty()) {
    check_writable_folder(options.checkpoint);
  }
  if (options.resume) {
    load_checkpoint(options.checkpoint, {{"model", options.model}});
  }
  if (!options.json.empty()) {
    check_writable_file(options.json);
  }
}

int spawn(const std::vector<std::string>& command, int nproc) {
  launch::SpawnOptions options;
  options.command = command;
  options.nproc = nproc;
  options.rank0_owns_stdout = true;
  options.on_line = [](int rank, launch::Stream stream, std::string_view line) {
    print_prefixed(rank, stream == launch::Stream::kErr, line);
  };
  const auto result = launch::spawn_ranks(options);
  if (result.first_failure) {
    std::cerr << "gradwire: " << to_string(*result.first_failure)
              << "; training ended" << std::endl;
  }
  return result.exit_code();
}

}  // namespace

int train(
    const TrainOptions& options, const std::vector<std::string>& command) {
  const Placement place = detect_placement(process_environment());
  // A launcher's world of one does not keep us from starting more ranks.
  const bool launched =
      place.launcher != "none" && (place.world > 1 || !options.nproc);
  const int ranks =
      launched ? place.world : options.nproc.value_or(kDefaultRanks);
  if (launched && options.nproc && *options.nproc != place.world) {
    fail(
        "app",
        "--nproc is ",
        *options.nproc,
        " but ",
        place.launcher,
        " started ",
        place.world,
        " ranks: leave --nproc out");
  }
  check(options, ranks);
  if (!launched || place.rank == 0) {
    check_files(options);
  }
  if (!launched && ranks > 1) {
    return spawn(command, ranks);
  }
  train_rank(options, init());
  return 0;
}

}  // namespace gradwire::apps
