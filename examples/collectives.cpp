// A group without DDP. Collectives return futures, every byte is counted, and
// an all-reduce can be compressed.
//
//   gradwire run --nproc 4 -- build/release/examples/collectives

#include <gradwire/gradwire.h>
#include <torch/torch.h>

#include <iostream>

int main() {
  auto group = gradwire::init();
  const int n = group.size();

  auto sum = torch::full({1000}, group.rank() + 1.0);
  auto reduced = group.all_reduce(sum);  // returns at once
  auto all = torch::empty({n, 2});
  auto gathered = group.all_gather(all, torch::full({2}, 1.0 * group.rank()));
  reduced.wait();
  gathered.wait();

  // The same sum with a quarter of the bytes and an error below one per cent.
  auto gradient = torch::full({1000}, group.rank() + 1.0);
  gradwire::compressed_all_reduce(group, gradient, "int8").wait();

  // A group of the even ranks; the other ranks get an empty group.
  std::vector<int> even;
  for (int rank = 0; rank < n; rank += 2) {
    even.push_back(rank);
  }
  auto subgroup = group.subgroup(even);
  if (subgroup) {
    subgroup.barrier().wait();
  }

  if (group.rank() == 0) {
    std::cout << "sum " << sum[0].item<double>() << ", compressed "
              << gradient[0].item<double>() << ", last rank "
              << all[n - 1][0].item<double>() << ", sent "
              << group.bytes_sent().total() << " bytes" << std::endl;
  }
  group.barrier().wait();
  return sum[0].item<double>() == n * (n + 1) / 2.0 ? 0 : 1;
}
