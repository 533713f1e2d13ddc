#include "apps/gradwire/train/train.h"

#include <cmath>
#include <iostream>
#include <memory>

#include "apps/gradwire/cli/ranges.h"
#include "apps/gradwire/cli/subcommand.h"
#include "apps/gradwire/shared/models.h"
#include "apps/gradwire/shared/prefixed.h"
#include "apps/gradwire/train/checkpoint.h"
#include "apps/gradwire/train/data.h"
#include "apps/gradwire/train/optimizers.h"
#include "apps/gradwire/train/stepper.h"
#include "gradwire/base/error.h"
#include "gradwire/base/files.h"
#include "gradwire/base/placement.h"
#include "gradwire/comm/init.h"
#include "gradwire/hook/registry.h"
#include "gradwire/launch/spawn.h"

namespace gradwire::apps {
namespace {

constexpr int kDefaultRanks = 2;

// Reports mistakes once, before ranks are started.
void check(const TrainOptions& options, int ranks) {
  check_range("nproc", ranks, 1, launch::kMostLocalRanks);
  check_range("epochs", options.epochs, 1, 100000);
  check_range<std::int64_t>("batch", options.batch, 1, 1 << 20);
  check_range("lr", options.lr, 1e-12, 1e3);
  check_range("momentum", options.momentum, 0.0, 1.0);
  check_range("threads", options.threads, 1, 1024);
  check_range<std::int64_t>("max-steps", options.max_steps, 0, 1LL << 40);
  check_range<std::int64_t>("local-sgd", options.local_sgd, 0, 1LL << 40);
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
  check_stepping(options);
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

// For rank 0, or for the process that starts the ranks: only it opens files.
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
    print_prefixed(concat("rank ", rank), stream, line);
  };
  const auto result = launch::spawn_ranks(options);
  if (result.first_failure) {
    std::cerr << "gradwire: " << to_string(*result.first_failure)
              << "; training ended" << std::endl;
  }
  return result.exit_code();
}

// Joins the ranks a launcher started, or starts some of its own by running
// `again`.
int train(const TrainOptions& options, const std::vector<std::string>& again) {
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
    return spawn(again, ranks);
  }
  train_rank(options, init());
  return 0;
}

void add_flags(Flags& flags, TrainOptions& options) {
  flags.add(
      "--nproc,-n",
      options.nproc,
      "ranks to start; default: 2, or those a launcher started");
  flags.add("--hook", options.hook, "spec of a hook, see `gradwire hooks`");
  flags.add(
      "--data",
      options.data,
      "fashion-mnist, synthetic or a folder of IDX files");
  flags.add(
      "--model",
      options.model,
      "mlp, cnn or resnet18, or with a width: mlp:2048");
  flags.add("--epochs", options.epochs, "passes over the data");
  flags.add("--batch", options.batch, "samples per step, all ranks together");
  flags.add("--lr", options.lr, "learning rate");
  flags.add("--optimizer", options.optimizer, join(optimizer_names()));
  flags.add("--momentum", options.momentum, "momentum of SGD");
  flags.add(
      "--local-sgd",
      options.local_sgd,
      "average parameters, by --hook, every so many steps instead of "
      "gradients; 0: never");
  flags.add(
      "--diloco",
      options.diloco,
      "steps between outer steps, and the hook of their averages: 32,int4");
  flags.add("--zero", options.zero, "spread the optimizer's state over ranks");
  flags.add(
      "--overlap", options.overlap, "step parameters while backward runs");
  flags.add(
      "--precision",
      options.precision,
      "bf16 or fp16: compute in this type, with parameters kept in float");
  flags.add(
      "--seed",
      options.seed,
      "seed of weights, order of samples and synthetic data");
  flags.add(
      "--max-steps",
      options.max_steps,
      "end after so many steps; 0: after the epochs");
  flags.add("--threads", options.threads, "compute threads per rank");
  flags.add("--checkpoint", options.checkpoint, "folder to save in");
  flags.add(
      "--checkpoint-every",
      options.checkpoint_every,
      "save every so many steps too; 0: after every epoch only");
  flags.add("--resume", options.resume, "go on from the checkpoint");
  flags.add("--json", options.json, "file for the report");
}

}  // namespace

Subcommand train_command() {
  return {"train", "train a classifier of images", [](Flags& flags) -> Action {
            const auto options = std::make_shared<TrainOptions>();
            add_flags(flags, *options);
            return [options](const std::vector<std::string>& again) {
              return train(*options, again);
            };
          }};
}

}  // namespace gradwire::apps
