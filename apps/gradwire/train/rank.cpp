#include <torch/torch.h>

#include <iomanip>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/gradwire/shared/bar.h"
#include "apps/gradwire/shared/models.h"
#include "apps/gradwire/shared/report_json.h"
#include "apps/gradwire/train/checkpoint.h"
#include "apps/gradwire/train/data.h"
#include "apps/gradwire/train/evaluate.h"
#include "apps/gradwire/train/stepper.h"
#include "apps/gradwire/train/train.h"
#include "apps/gradwire/train/training_state.h"
#include "gradwire/base/error.h"
#include "gradwire/base/files.h"
#include "gradwire/ddp/ddp.h"

namespace gradwire::apps {
namespace {

using Clock = std::chrono::steady_clock;
using Net = DistributedDataParallel<std::shared_ptr<Classifier>>;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

class Training {
 public:
  Training(const TrainOptions& options, const Group& group)
      : options_(options),
        group_(group),
        data_(load_dataset(options.data, options.seed)),
        model_(make_seeded_model()),
        stepper_(options, group, tensors_of(model_)),
        net_(
            model_,
            group,
            {.hook = stepper_.hook(), .precision = precision_of(options)}),
        steps_per_epoch_(data_.train.size() / options.batch) {
    if (steps_per_epoch_ == 0) {
      fail(
          "app",
          "--batch is ",
          options.batch,
          ", expected at most the ",
          data_.train.size(),
          " training samples");
    }
    total_steps_ = steps_per_epoch_ * options.epochs;
    if (options.max_steps > 0) {
      total_steps_ = std::min(total_steps_, options.max_steps);
    }
    stepper_.begin();
  }

  void run() {
    if (options_.resume) {
      resume();
    }
    const std::int64_t first = step_;
    Bar bar(leads(), total_steps_, first);
    const auto start = Clock::now();
    while (step_ < total_steps_) {
      const double loss = train_step();
      const auto done = static_cast<double>((step_ - first) * options_.batch);
      const auto epoch = (step_ - 1) / steps_per_epoch_ + 1;
      bar.update(
          step_,
          concat(
              "epoch ",
              epoch,
              "/",
              options_.epochs,
              "  loss ",
              fixed(loss, 4),
              "  ",
              fixed(done / seconds_since(start), 0),
              " samples/s"));
      save_if_due();
    }
    bar.finish();
    stepper_.finish();
    report(seconds_since(start), first);
  }

 private:
  bool leads() const {
    return group_.rank() == 0;
  }

  std::shared_ptr<Classifier> make_seeded_model() const {
    torch::manual_seed(options_.seed);
    const ImageShape shape{
        data_.train.images.size(2), data_.train.images.size(3), data_.classes};
    return make_model(options_.model, shape);
  }

  static MixedPrecision precision_of(const TrainOptions& options) {
    MixedPrecision precision;
    if (!options.precision.empty()) {
      precision.parameters =
          options.precision == "fp16" ? torch::kHalf : torch::kBFloat16;
    }
    return precision;
  }

  // The samples of this rank in the global batch of the current step. The
  // order depends on seed and epoch alone, so every rank, world and resumed
  // run draws the same global batches.
  at::Tensor sample() {
    const std::int64_t epoch = step_ / steps_per_epoch_;
    if (epoch != order_epoch_) {
      auto generator = at::make_generator<at::CPUGeneratorImpl>(
          options_.seed + 1000003 * static_cast<std::uint64_t>(epoch));
      order_ = torch::randperm(data_.train.size(), generator);
      order_epoch_ = epoch;
    }
    const std::int64_t begin = step_ % steps_per_epoch_ * options_.batch;
    const auto cut = [&](int rank) {
      return begin + options_.batch * rank / group_.size();
    };
    return order_.slice(0, cut(group_.rank()), cut(group_.rank() + 1));
  }

  double train_step() {
    const auto indices = sample();
    const auto inputs = data_.inputs(data_.train, indices);
    const auto targets = data_.train.labels.index_select(0, indices);
    stepper_.zero_grad();
    auto loss = torch::cross_entropy_loss(
        net_->forward(inputs).to(torch::kFloat), targets);
    // DDP averages over ranks; when shares are unequal a rank's mean must
    // count by its share for the result to be the mean over the batch.
    const auto share = static_cast<double>(indices.numel() * group_.size()) /
                       static_cast<double>(options_.batch);
    if (share != 1.0 && !stepper_.ranks_differ()) {
      loss = loss * share;
    }
    stepper_.scaled(loss).backward();
    stepper_.step([this] { return net_->stats().last.outcome; });
    ++step_;
    losses_.push_back(loss.item<double>());
    return losses_.back();
  }

  std::map<std::string, std::string> facts() const {
    return {
        {"model", options_.model},
        {"data", options_.data},
        {"seed", concat(options_.seed)},
        {"batch", concat(options_.batch)},
        {"optimizer", options_.optimizer}};
  }

  void save_if_due() {
    const bool epoch_end = step_ % steps_per_epoch_ == 0;
    const bool due =
        options_.checkpoint_every > 0 && step_ % options_.checkpoint_every == 0;
    if (options_.checkpoint.empty() ||
        !(epoch_end || due || step_ == total_steps_)) {
      return;
    }
    const auto folder = hook_state_folder(options_.checkpoint, step_);
    net_->save_hook_state(folder);
    const OptimizerState state = stepper_.state();
    if (stepper_.ranks_differ()) {
      write_atomically(own_file(folder), pack_state(*model_, state));
      stepper_.save(folder);
    }
    if (leads()) {
      save_model(state);
    }
  }

  // Of a rank whose parameters are its own.
  std::string own_file(const std::filesystem::path& folder) const {
    return folder / concat("training.rank", group_.rank());
  }

  void save_model(const OptimizerState& state) {
    auto facts = this->facts();
    facts["hook"] = net_->hook();
    facts["world"] = concat(group_.size());
    facts["scaler"] = stepper_.scaler_state();
    save_checkpoint(
        options_.checkpoint, {facts, step_, pack_state(*model_, state)});
    remove_older_hook_states(options_.checkpoint, step_);
  }

  void resume() {
    Checkpoint loaded;
    const std::string state = share_from_rank0(group_, [&] {
      loaded = load_checkpoint(options_.checkpoint, facts());
      return loaded.state;
    });
    const auto shared_fact = [&](const char* name) {
      return share_from_rank0(group_, [&] { return loaded.facts[name]; });
    };
    const std::string hook = shared_fact("hook");
    const bool same_world = shared_fact("world") == concat(group_.size());
    stepper_.set_scaler_state(shared_fact("scaler"));
    auto step = torch::tensor({loaded.step}, torch::kLong);
    group_.broadcast(step).wait();
    step_ = step.item<std::int64_t>();
    take_state(state);
    if (stepper_.ranks_differ()) {
      const auto folder = hook_state_folder(options_.checkpoint, step_);
      if (same_world) {
        take_state(read_whole(own_file(folder)));
      }
      stepper_.load(folder);
    }
    resume_hook(hook);
    if (leads()) {
      std::cout << "resumed at step " << step_ << "/" << total_steps_
                << std::endl;
    }
  }

  void take_state(const std::string& bytes) {
    unpack_state(bytes, *model_, [this](const OptimizerState& state) {
      stepper_.set_state(state);
    });
  }

  // Another hook than before is the user's wish, and starts from nothing.
  void resume_hook(const std::string& saved_hook) {
    if (saved_hook == net_->hook()) {
      net_->load_hook_state(hook_state_folder(options_.checkpoint, step_));
    } else if (leads() && !saved_hook.empty()) {
      std::cout << "hook " << net_->hook() << " starts afresh, the checkpoint "
                << "is of " << saved_hook << std::endl;
    }
  }

  // The mean loss over the whole batch, for every step of this run.
  std::vector<double> global_losses() const {
    auto sum = torch::tensor(losses_, torch::kDouble);
    group_.all_reduce(sum).wait();
    sum /= group_.size();
    return {sum.data_ptr<double>(), sum.data_ptr<double>() + sum.numel()};
  }

  Bytes sum_over_ranks(const Bytes& bytes) const {
    auto sums = torch::tensor({bytes.payload, bytes.metadata}, torch::kLong);
    group_.all_reduce(sums).wait();
    return {sums[0].item<std::int64_t>(), sums[1].item<std::int64_t>()};
  }

  // Beside what the statistics of rank 0 say, the report has what only a
  // training run knows.
  void report(double seconds, std::int64_t first_step) {
    const Stats stats = net_->stats();
    const double accuracy = apps::test_accuracy(*model_, data_, group_);
    const auto losses = global_losses();
    const std::uint64_t weights = weights_fingerprint(*model_);
    const bool identical = same_on_all_ranks(group_, weights);
    const Bytes sent_by_all = sum_over_ranks(stats.sent + stepper_.sent());
    if (!leads()) {
      return;
    }
    std::ostringstream hex;
    hex << std::hex << std::setw(16) << std::setfill('0') << weights;
    const auto trained =
        static_cast<double>((step_ - first_step) * options_.batch);
    const std::string stepping = stepper_.summary();
    std::cout << stats << "\n"
              << stepping << (stepping.empty() ? "" : "\n") << "test accuracy "
              << fixed(100 * accuracy, 2) << " %, weights " << hex.str()
              << (identical ? " on every rank" : ", NOT the same on every rank")
              << std::endl;
    if (!options_.json.empty()) {
      nlohmann::json json = to_json(stats);
      json.update(nlohmann::json{
          {"schema", 1},
          {"gradwire", GRADWIRE_VERSION},
          {"torch", TORCH_VERSION},
          {"data", options_.data},
          {"model", options_.model},
          {"epochs", options_.epochs},
          {"batch", options_.batch},
          {"lr", options_.lr},
          {"optimizer", options_.optimizer},
          {"seed", options_.seed},
          {"first_step", first_step},
          {"seconds", seconds},
          {"samples_per_second", trained / std::max(seconds, 1e-9)},
          {"loss", losses},
          {"test_accuracy", accuracy},
          {"sent_for_parameters", to_json(stepper_.sent())},
          {"optimizer_state_bytes", stepper_.state_bytes()},
          {"sent_by_all_ranks", to_json(sent_by_all)},
          {"weights", hex.str()},
          {"identical", identical}});
      write_atomically(options_.json, json.dump(2) + "\n");
    }
  }

  const TrainOptions& options_;
  Group group_;
  Dataset data_;
  std::shared_ptr<Classifier> model_;
  // Outlives the DDP, whose hook may step its optimizer.
  Stepper stepper_;
  Net net_;
  std::int64_t steps_per_epoch_;
  std::int64_t total_steps_ = 0;
  std::int64_t step_ = 0;
  at::Tensor order_;
  std::int64_t order_epoch_ = -1;
  std::vector<double> losses_;
};

}  // namespace

void train_rank(const TrainOptions& options, const Group& group) {
  at::set_num_threads(options.threads);
  Training(options, group).run();
  group.barrier().wait();
}

}  // namespace gradwire::apps
