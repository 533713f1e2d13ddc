// The gradwire command: flags are declared here, work is done in one file per
// subcommand.

#include <CLI/CLI.hpp>
#include <iostream>

#include "apps/gradwire/bench.h"
#include "apps/gradwire/bench_rpc.h"
#include "apps/gradwire/hooks.h"
#include "apps/gradwire/info.h"
#include "apps/gradwire/run.h"
#include "apps/gradwire/train.h"
#include "gradwire/base/error.h"

namespace {

using namespace gradwire::apps;
using gradwire::first_line;

constexpr int kUsageError = 2;
constexpr int kFailure = 1;

void add_run(CLI::App& app, RunOptions& options) {
  auto* run = app.add_subcommand("run", "start local ranks of any program");
  auto* nproc = run->add_option("--nproc,-n", options.nproc, "number of ranks")
                    ->capture_default_str();
  run->add_option("--role", options.roles, "ranks by role, such as trainer=2")
      ->take_all()
      ->allow_extra_args(false)
      ->excludes(nproc);
  run->add_option("command", options.command, "program and its arguments")
      ->required();
  run->positionals_at_end();
}

void add_train(CLI::App& app, TrainOptions& options) {
  auto* train = app.add_subcommand("train", "train a classifier of images");
  train->add_option("--nproc,-n", options.nproc, "ranks to start, default 2");
  train->add_option("--hook", options.hook, "see `gradwire hooks`, or none")
      ->capture_default_str();
  train
      ->add_option(
          "--data", options.data, "fashion-mnist, synthetic or an IDX folder")
      ->capture_default_str();
  train
      ->add_option(
          "--model", options.model, "mlp, cnn or resnet18, with :width if any")
      ->capture_default_str();
  train->add_option("--epochs", options.epochs)->capture_default_str();
  train->add_option("--batch", options.batch, "samples a step, all ranks")
      ->capture_default_str();
  train->add_option("--lr", options.lr)->capture_default_str();
  train->add_option("--momentum", options.momentum)->capture_default_str();
  train->add_option("--seed", options.seed)->capture_default_str();
  train->add_option("--max-steps", options.max_steps, "stop early; 0: do not")
      ->capture_default_str();
  train->add_option("--threads", options.threads, "compute threads a rank")
      ->capture_default_str();
  train->add_option("--checkpoint", options.checkpoint, "folder to save in");
  train
      ->add_option(
          "--checkpoint-every",
          options.checkpoint_every,
          "save every so many steps too")
      ->capture_default_str();
  train->add_flag("--resume", options.resume, "go on from the checkpoint");
  train->add_option("--json", options.json, "file for the report");
}

void add_bench(CLI::App& app, BenchOptions& options) {
  auto* bench =
      app.add_subcommand("bench", "measure hooks side by side, on links too");
  bench->add_option("--nproc,-n", options.nproc, "number of ranks")
      ->capture_default_str();
  bench->add_option("--hooks", options.hooks, "specs separated by commas")
      ->capture_default_str();
  bench
      ->add_option(
          "--link", options.links, "rates such as 1gbit,100mbit, or loopback")
      ->take_all()
      ->allow_extra_args(false);
  bench
      ->add_option(
          "--congestion", options.congestion, "of TCP on links with a rate")
      ->capture_default_str();
  bench->add_option("--model", options.model, "see `gradwire train`")
      ->capture_default_str();
  bench->add_option("--batch", options.batch, "samples a step and rank")
      ->capture_default_str();
  bench->add_option("--steps", options.steps, "steps a round and hook")
      ->capture_default_str();
  bench->add_option("--rounds", options.rounds)->capture_default_str();
  bench->add_option("--warmup", options.warmup, "steps a hook and link")
      ->capture_default_str();
  bench->add_option("--bucket-mb", options.bucket_mb, "MiB a bucket")
      ->capture_default_str();
  bench->add_option(
      "--timeout", options.timeout_s, "longest wait for a turn, in seconds");
  bench->add_option(
      "--peer", options.peer, "a Python whose torch is measured beside");
  bench->add_option(
      "--attach",
      options.attach,
      "hooks that the peer attaches to its DDP with the gradwire package");
  bench->add_option("--json", options.json, "file for rows and samples");
  bench->add_flag("--in-namespace", options.in_namespace)->group("");
}

void add_bench_rpc(CLI::App& app, BenchRpcOptions& options) {
  auto* rpc = app.get_subcommand("bench")->add_subcommand(
      "rpc", "measure calls between workers and hybrid training");
  rpc->add_option("--rounds", options.rounds)->capture_default_str();
  rpc->add_option("--calls", options.calls, "small calls a round")
      ->capture_default_str();
  rpc->add_option("--transport", options.transport, "tcp or shm")
      ->capture_default_str();
  rpc->add_option(
      "--peer", options.peer, "a Python whose torch is measured beside");
  rpc->add_option("--json", options.json, "file for rows and samples");
  app.add_subcommand("bench-rpc-rank", "a worker of bench rpc")
      ->group("")
      ->add_option("--transport", options.transport);
}

void add_bench_rank(CLI::App& app, BenchRankOptions& options) {
  auto* rank = app.add_subcommand("bench-rank", "a rank of bench")->group("");
  rank->add_option("--hook", options.hooks)
      ->take_all()
      ->allow_extra_args(false);
  rank->add_option("--model", options.model);
  rank->add_option("--batch", options.batch);
  rank->add_option("--bucket-mb", options.bucket_mb);
}

// The command that starts this program again as one of its own ranks.
std::vector<std::string> own_command(int argc, char** argv) {
  std::vector<std::string> command(argv, argv + argc);
  command[0] = "/proc/self/exe";
  return command;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Gradient communication for data-parallel training");
  app.name("gradwire");
  app.set_version_flag("--version", "gradwire " GRADWIRE_VERSION);
  app.require_subcommand(0, 1);
  app.option_defaults()->take_last();
  RunOptions run_options;
  TrainOptions train_options;
  BenchOptions bench_options;
  BenchRankOptions bench_rank_options;
  BenchRpcOptions bench_rpc_options;
  bool json = false;
  add_run(app, run_options);
  add_train(app, train_options);
  add_bench(app, bench_options);
  add_bench_rpc(app, bench_rpc_options);
  add_bench_rank(app, bench_rank_options);
  app.add_subcommand("hooks", "list the hooks with their options")
      ->add_flag("--json", json, "as JSON");
  app.add_subcommand("info", "show versions, processor and environment");

  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& e) {
    return app.exit(e);
  } catch (const CLI::ParseError& e) {
    std::cerr << "gradwire: " << first_line(e.what())
              << " (gradwire --help shows what there is)" << std::endl;
    return kUsageError;
  }
  if (app.get_subcommands().empty()) {
    std::cerr
        << "gradwire: a subcommand is required: run, train, bench, hooks or "
           "info (gradwire --help shows what there is)"
        << std::endl;
    return kUsageError;
  }
  try {
    if (app.got_subcommand("run")) {
      return run(run_options);
    }
    if (app.got_subcommand("train")) {
      return train(train_options, own_command(argc, argv));
    }
    if (app.got_subcommand("bench-rpc-rank")) {
      return bench_rpc_rank(bench_rpc_options.transport);
    }
    if (app.got_subcommand("bench") &&
        app.get_subcommand("bench")->got_subcommand("rpc")) {
      return bench_rpc(bench_rpc_options);
    }
    if (app.got_subcommand("bench")) {
      return bench(bench_options, own_command(argc, argv));
    }
    if (app.got_subcommand("bench-rank")) {
      return bench_rank(bench_rank_options);
    }
    if (app.got_subcommand("hooks")) {
      return list_hooks(json);
    }
    return print_info();
  } catch (const gradwire::CommError& e) {
    std::cerr << "gradwire: " << e.what() << std::endl;
    return kFailure;
  } catch (const gradwire::Error& e) {
    std::cerr << "gradwire: " << e.what() << std::endl;
    return kUsageError;
  } catch (const std::exception& e) {
    std::cerr << "gradwire: " << first_line(e.what()) << std::endl;
    return kFailure;
  }
}
