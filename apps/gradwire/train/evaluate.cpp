#include "apps/gradwire/train/evaluate.h"

#include <torch/torch.h>

#include "gradwire/base/text.h"

namespace gradwire::apps {

double test_accuracy(
    Classifier& model, const Dataset& data, const Group& group) {
  const torch::NoGradGuard no_grad;
  model.eval();
  constexpr std::int64_t kTestBatch = 512;
  std::int64_t correct = 0;
  const auto all = torch::arange(data.test.size());
  std::int64_t turn = 0;
  for (const auto& indices : all.split(kTestBatch)) {
    if (turn++ % group.size() != group.rank()) {
      continue;
    }
    const auto scores = model.forward(data.inputs(data.test, indices));
    const auto labels = data.test.labels.index_select(0, indices);
    correct += scores.argmax(1).eq(labels).sum().item<std::int64_t>();
  }
  auto total = torch::tensor({correct}, torch::kLong);
  group.all_reduce(total).wait();
  return static_cast<double>(total.item<std::int64_t>()) /
         static_cast<double>(data.test.size());
}

std::uint64_t weights_fingerprint(const Classifier& model) {
  std::string prints;
  for (const auto& item : model.named_parameters()) {
    const auto tensor = item.value().detach().contiguous();
    prints += concat(
        item.key(),
        fingerprint(
            {static_cast<const char*>(tensor.data_ptr()), tensor.nbytes()}));
  }
  return fingerprint(prints);
}

bool same_on_all_ranks(const Group& group, std::uint64_t value) {
  const auto bits = static_cast<std::int64_t>(value);
  auto mine = torch::tensor({bits}, torch::kLong);
  auto all = torch::empty({group.size()}, torch::kLong);
  group.all_gather(all, mine).wait();
  return all.eq(bits).all().item<bool>();
}

}  // namespace gradwire::apps
