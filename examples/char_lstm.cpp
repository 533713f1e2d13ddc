// Trains a character-level LSTM on the licences that come with Debian. The
// arguments are the hook, the number of steps and the seed:
//
//   gradwire run --nproc 2 -- build/release/examples/char_lstm int8 500 1
//
// It prints the loss on text it has not seen, and the bytes sent.

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <filesystem>
#include <fstream>
#include <iostream>
#include <set>

namespace {

constexpr int kWidth = 256;
constexpr int kWindow = 64;
constexpr int kBatch = 16;

// The bytes of all licences, one after another.
at::Tensor read_licences() {
  std::set<std::filesystem::path> files;
  for (const auto& entry :
       std::filesystem::directory_iterator("/usr/share/common-licenses")) {
    if (entry.is_regular_file() && !entry.is_symlink()) {
      files.insert(entry.path());
    }
  }
  std::string text;
  for (const auto& file : files) {
    std::ifstream in(file);
    text.append(std::istreambuf_iterator<char>(in), {});
  }
  const auto size = static_cast<std::int64_t>(text.size());
  return torch::from_blob(text.data(), {size}, torch::kByte).to(torch::kLong);
}

struct CharLstm : torch::nn::Module {
  at::Tensor forward(const at::Tensor& bytes) {
    return head(std::get<0>(lstm->forward(embedding(bytes))));
  }
  torch::nn::Embedding embedding =
      register_module("embedding", torch::nn::Embedding(256, 64));
  torch::nn::LSTM lstm = register_module(
      "lstm",
      torch::nn::LSTM(
          torch::nn::LSTMOptions(64, kWidth).num_layers(2).batch_first(true)));
  torch::nn::Linear head =
      register_module("head", torch::nn::Linear(kWidth, 256));
};

// The mean loss over the windows that begin at `places`.
template <class Net>
at::Tensor loss_at(Net& net, const at::Tensor& text, const at::Tensor& places) {
  const auto at = places.unsqueeze(1) + torch::arange(kWindow + 1);
  const auto windows = text.index({at});
  const auto scores = net->forward(windows.slice(1, 0, kWindow));
  return torch::cross_entropy_loss(
      scores.flatten(0, 1), windows.slice(1, 1).flatten());
}

}  // namespace

int main(int argc, char** argv) {
  const std::string hook =
      argc > 1 ? argv[1]
               : gradwire::PowerSgdOptions{.rank = 4, .start = 20}.spec();
  const int steps = argc > 2 ? std::atoi(argv[2]) : 60;
  const int seed = argc > 3 ? std::atoi(argv[3]) : 1;
  at::set_num_threads(1);
  const auto group = gradwire::init();
  const auto text = read_licences();
  // The last tenth of the text is for validation.
  const auto cut = text.numel() / 10 * 9 - kWindow - 1;
  torch::manual_seed(seed);
  auto net = std::make_shared<CharLstm>();
  auto ddp = gradwire::DistributedDataParallel(net, group, {.hook = hook});
  torch::optim::SGD sgd(
      ddp->parameters(), torch::optim::SGDOptions(1.0).momentum(0.9));

  torch::manual_seed(1000 * seed + group.rank());
  for (int step = 0; step < steps; ++step) {
    sgd.zero_grad();
    loss_at(ddp, text, torch::randint(cut, {kBatch})).backward();
    torch::nn::utils::clip_grad_norm_(ddp->parameters(), 0.25);
    sgd.step();
  }
  const torch::NoGradGuard no_grad;
  const auto unseen =
      torch::arange(cut + kWindow, text.numel() - kWindow - 1, kWindow);
  const auto loss = loss_at(net, text, unseen).item<double>();
  if (group.rank() == 0) {
    std::cout << ddp->stats() << "\nvalidation loss " << loss
              << " nats a character" << std::endl;
  }
  group.barrier().wait();
  return loss < 3.3 ? 0 : 1;
}
