// The C++ side of test_cpp.py: trains the model in a file on the inputs in it
// and leaves this rank's parameters beside it.
//
//   gradwire run --nproc 2 -- gradwire_twin FOLDER HOOK

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <fstream>
#include <iterator>

namespace {

// What torch.save wrote.
c10::IValue read(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes(std::istreambuf_iterator<char>(file), {});
  return torch::pickle_load(bytes);
}

std::vector<at::Tensor> tensors(const c10::IValue& list) {
  std::vector<at::Tensor> result;
  for (const c10::IValue& value : list.toListRef()) {
    result.push_back(value.toTensor());
  }
  return result;
}

torch::nn::Sequential make_net(const std::vector<at::Tensor>& parameters) {
  torch::nn::Sequential net;
  for (std::size_t i = 0; i < parameters.size(); i += 2) {
    const auto& weight = parameters[i];
    if (i > 0) {
      net->push_back(torch::nn::Tanh());
    }
    torch::nn::Linear linear(weight.size(1), weight.size(0));
    const torch::NoGradGuard no_grad;
    linear->weight.copy_(weight);
    linear->bias.copy_(parameters[i + 1]);
    net->push_back(linear);
  }
  return net;
}

}  // namespace

int main(int, char** argv) {
  const std::string folder = argv[1];
  torch::set_num_threads(1);
  auto group = gradwire::init();
  const auto rank = std::to_string(group.rank());
  auto net = make_net(tensors(read(folder + "/parameters.pt")));
  auto ddp = gradwire::DistributedDataParallel(net, group, {.hook = argv[2]});
  torch::optim::SGD sgd(
      ddp->parameters(), torch::optim::SGDOptions(0.05).momentum(0.9));
  for (const auto& input : tensors(read(folder + "/inputs" + rank + ".pt"))) {
    sgd.zero_grad();
    ddp->forward(input).square().sum().backward();
    sgd.step();
  }
  const auto bytes = torch::pickle_save(ddp->parameters());
  std::ofstream(folder + "/cpp" + rank + ".pt", std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  group.barrier().wait();
}
