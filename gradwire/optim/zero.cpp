#include "gradwire/optim/zero_impl.h"

#include <ATen/core/grad_mode.h>
#include <torch/optim/lbfgs.h>

#include <optional>
#include <typeinfo>

#include "gradwire/base/error.h"

namespace gradwire {
namespace {

// Vectors of ATen's loops, and what they do in one go, divide it: a slice is
// computed with the same instructions as in the whole parameter, and so has the
// same bits.
constexpr std::int64_t kVectorElems = 64;

std::string zero_name_of(
    const at::Tensor& tensor, const NamedTensorList& names, std::size_t index) {
  for (const NamedTensor& each : names) {
    if (each.tensor.is_same(tensor)) {
      return each.name;
    }
  }
  return concat(index);
}

}  // namespace

ZeroRedundancyOptimizer::Impl::Impl(
    const Group& given,
    const SliceOptimizer& slice_optimizer,
    const ZeroOptions& zero_options)
    : parent(given),
      optimizer(slice_optimizer),
      options(zero_options),
      dealer(given.size(), 0) {
  shards.resize(static_cast<std::size_t>(given.size()));
}

ZeroRedundancyOptimizer::ZeroRedundancyOptimizer(
    const Group& group,
    const Groups& groups,
    const SliceOptimizer& optimizer,
    const ZeroOptions& options)
    : Optimizer(Groups(), optimizer.defaults().clone()),
      impl_(std::make_shared<Impl>(group, optimizer, options)) {
  Impl& impl = *impl_;
  std::optional<Impl::Addition> addition;
  agree_checked(group, "ZeroRedundancyOptimizer", [&] {
    impl.options.parameters = Spreader::check_codec(options.parameters);
    impl.encoded = group.size() > 1 && impl.options.parameters != "none";
    impl.cut = options.split
                   ? Spreader::cut(impl.options.parameters, kVectorElems)
                   : 0;
    impl.dealer = plan::ShardDealer(group.size(), impl.cut);
    for (const auto& each : groups) {
      Optimizer::add_param_group(each);
    }
    addition = impl.prepare(param_groups_);
    return impl.facts_of(*addition);
  });
  impl.group = group.duplicate("zero");
  impl.roll_call = std::make_unique<RollCall>(impl.group);
  impl.spreader = std::make_unique<Spreader>(
      impl.group, impl.options.parameters, "the parameters of zero");
  impl.add(std::move(*addition));
}

ZeroRedundancyOptimizer::~ZeroRedundancyOptimizer() = default;

ZeroRedundancyOptimizer::Impl::Addition ZeroRedundancyOptimizer::Impl::prepare(
    const Groups& all_groups) {
  Addition addition{{}, {}, dealer, {}};
  std::vector<plan::TensorSize> sizes;
  std::unordered_map<const void*, std::string> seen;
  for (const auto& [tensor, index] : by_tensor) {
    seen.emplace(tensor, parameters[index]->name());
  }
  for (std::size_t g = locals.size(); g < all_groups.size(); ++g) {
    for (const at::Tensor& tensor : all_groups[g].params()) {
      const std::size_t index = parameters.size() + addition.parameters.size();
      auto parameter = std::make_unique<ZeroParameter>(
          zero_name_of(tensor, options.names, index), tensor, g);
      const auto [known, is_new] =
          seen.emplace(tensor.unsafeGetTensorImpl(), parameter->name());
      if (!is_new) {
        fail("optim", "parameter '", known->second, "' is there twice");
      }
      if (options.parameters != "none" && tensor.scalar_type() != at::kFloat) {
        fail(
            "optim",
            "parameter '",
            parameter->name(),
            "' is of ",
            tensor.scalar_type(),
            ", expected Float for parameters that travel as ",
            options.parameters);
      }
      sizes.push_back(
          {tensor.numel(), static_cast<std::int64_t>(tensor.element_size())});
      addition.parameters.push_back(std::move(parameter));
    }
  }
  addition.shards = addition.dealer.deal(sizes, parameters.size());
  const auto rank = static_cast<std::size_t>(parent.rank());
  for (const auto& run : addition.shards[rank]) {
    addition.parameters[run.tensor - parameters.size()]->own(
        run, !options.split, encoded);
  }
  for (std::size_t g = locals.size(); g < all_groups.size(); ++g) {
    std::vector<at::Tensor> slices;
    for (const auto& parameter : addition.parameters) {
      if (parameter->group() == g && parameter->run()) {
        slices.push_back(parameter->slice());
      }
    }
    addition.locals.push_back(optimizer.make({torch::optim::OptimizerParamGroup(
        std::move(slices), all_groups[g].options().clone())}));
    if (dynamic_cast<torch::optim::LBFGS*>(addition.locals.back().get())) {
      fail(
          "optim",
          "LBFGS looks at all parameters together, expected an optimizer that "
          "treats each by itself");
    }
  }
  return addition;
}

std::vector<Fact> ZeroRedundancyOptimizer::Impl::facts_of(
    const Addition& addition) const {
  std::vector<Fact> facts{
      {"split", concat(options.split)},
      {"parameters travel as", options.parameters},
      {"parameter groups", concat(locals.size() + addition.locals.size())}};
  for (const auto& local : addition.locals) {
    const torch::optim::Optimizer& made = *local;
    facts.push_back({"optimizer", typeid(made).name()});
  }
  for (const auto& parameter : addition.parameters) {
    const at::Tensor& tensor = parameter->tensor();
    facts.push_back(
        {concat("parameter '", parameter->name(), "'"),
         concat(
             tensor.scalar_type(),
             ' ',
             tensor.sizes(),
             " strides ",
             tensor.strides(),
             " in group ",
             parameter->group())});
  }
  return facts;
}

void ZeroRedundancyOptimizer::Impl::add(Addition addition) {
  for (auto& parameter : addition.parameters) {
    by_tensor.emplace(
        parameter->tensor().unsafeGetTensorImpl(), parameters.size());
    parameters.push_back(std::move(parameter));
  }
  for (auto& local : addition.locals) {
    kind = kind ? kind : find_optimizer_kind(*local);
    locals.push_back(std::move(local));
  }
  dealer = addition.dealer;
  for (std::size_t rank = 0; rank < shards.size(); ++rank) {
    const auto& more = addition.shards[rank];
    shards[rank].insert(shards[rank].end(), more.begin(), more.end());
  }
  all = make_spread(std::vector<bool>(parameters.size(), true));
  gradients_agreed = false;
}

std::shared_ptr<Spread> ZeroRedundancyOptimizer::Impl::make_spread(
    const std::vector<bool>& chosen) const {
  std::vector<std::shared_ptr<SpreadTarget>> targets;
  targets.reserve(parameters.size());
  for (const auto& parameter : parameters) {
    targets.push_back(parameter->target());
  }
  auto some = shards;
  for (auto& runs : some) {
    std::erase_if(runs, [&](const auto& run) { return !chosen[run.tensor]; });
  }
  return spreader->make_spread(targets, some);
}

void ZeroRedundancyOptimizer::add_param_group(
    const torch::optim::OptimizerParamGroup& group) {
  Impl& impl = *impl_;
  std::optional<Impl::Addition> addition;
  const std::size_t before = param_groups_.size();
  try {
    agree_checked(impl.parent, "add_param_group", [&] {
      impl.check_groups(param_groups_);
      Optimizer::add_param_group(group);
      addition = impl.prepare(param_groups_);
      return impl.facts_of(*addition);
    });
  } catch (...) {
    while (param_groups_.size() > before) {
      param_groups_.pop_back();
    }
    throw;
  }
  impl.add(std::move(*addition));
}

// The base class can be given groups that nobody here knows of.
void ZeroRedundancyOptimizer::Impl::check_groups(const Groups& visible) const {
  std::size_t count = 0;
  for (const auto& each : visible) {
    count += each.params().size();
  }
  if (visible.size() != locals.size() || count != parameters.size()) {
    fail(
        "optim",
        "there are ",
        count,
        " parameters in ",
        visible.size(),
        " groups, expected ",
        parameters.size(),
        " in ",
        locals.size(),
        ": ZeroRedundancyOptimizer::add_param_group adds more");
  }
}

void ZeroRedundancyOptimizer::Impl::use_options(const Groups& visible) {
  for (std::size_t g = 0; g < locals.size(); ++g) {
    locals[g]->param_groups().front().set_options(visible[g].options().clone());
  }
}

void ZeroRedundancyOptimizer::Impl::take_gradients() {
  for (const auto& parameter : parameters) {
    parameter->follow();
    parameter->check_gradient();
    parameter->set_gradient(parameter->tensor().grad());
  }
}

void ZeroRedundancyOptimizer::Impl::drop_gradients() {
  for (const auto& parameter : parameters) {
    parameter->set_gradient({});
  }
}

void ZeroRedundancyOptimizer::Impl::step_slices() {
  for (const auto& local : locals) {
    local->step();
  }
}

void ZeroRedundancyOptimizer::Impl::note_written() {
  for (const auto& parameter : parameters) {
    parameter->note_written();
  }
}

// Ranks compare what can be wrong with gradients once, in the first step. What
// goes wrong on one of them later ends the connections, so that the others need
// not wait for it.
void ZeroRedundancyOptimizer::Impl::step(const Groups& visible) {
  const at::NoGradGuard no_grad;
  if (!gradients_agreed) {
    agree_checked(parent, "the first step of ZeroRedundancyOptimizer", [&] {
      check_groups(visible);
      for (const auto& parameter : parameters) {
        parameter->check_gradient();
      }
      return std::vector<Fact>{};
    });
    gradients_agreed = true;
  }
  try {
    check_groups(visible);
    use_options(visible);
    take_gradients();
    step_slices();
    drop_gradients();
  } catch (...) {
    drop_gradients();
    spreader->fail(std::current_exception());
  }
  roll_call->named(spreader->start(*all)).wait();
  note_written();
  ++steps;
}

at::Tensor ZeroRedundancyOptimizer::step(LossClosure closure) {
  at::Tensor loss;
  if (closure) {
    const at::AutoGradMode with_grad(true);
    loss = closure();
  }
  if (!impl_->overlapped) {
    impl_->step(param_groups_);
  }
  return loss;
}

ZeroStats ZeroRedundancyOptimizer::stats() const {
  const Impl& impl = *impl_;
  ZeroStats stats{.steps = impl.steps, .sent = impl.group.bytes_sent()};
  for (const auto& parameter : impl.parameters) {
    if (parameter->run()) {
      stats.parameter_bytes +=
          static_cast<std::int64_t>(parameter->slice().nbytes());
      if (impl.kind) {
        stats.state_bytes +=
            gradwire::state_bytes(impl.state_of_slice(*parameter));
      }
    }
  }
  return stats;
}

}  // namespace gradwire
