#pragma once

// Private to rpc: options of optimizers as named numbers, which is how they
// travel.

#include <torch/optim/adagrad.h>
#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/sgd.h>

#include <map>
#include <string>
#include <tuple>

#include "gradwire/base/error.h"

namespace gradwire::rpc {

using NamedNumbers = std::map<std::string, double>;

// Calls visit(name, value) for every option; a value is a double or a bool.
template <class Visit>
void visit_options(torch::optim::SGDOptions& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("momentum", options.momentum());
  visit("dampening", options.dampening());
  visit("weight_decay", options.weight_decay());
  visit("nesterov", options.nesterov());
}

// AdamOptions and AdamWOptions.
template <class Options, class Visit>
void visit_adam_options(Options& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("beta1", std::get<0>(options.betas()));
  visit("beta2", std::get<1>(options.betas()));
  visit("eps", options.eps());
  visit("weight_decay", options.weight_decay());
  visit("amsgrad", options.amsgrad());
}
template <class Visit>
void visit_options(torch::optim::AdamOptions& options, const Visit& visit) {
  visit_adam_options(options, visit);
}
template <class Visit>
void visit_options(torch::optim::AdamWOptions& options, const Visit& visit) {
  visit_adam_options(options, visit);
}

template <class Visit>
void visit_options(torch::optim::AdagradOptions& options, const Visit& visit) {
  visit("lr", options.lr());
  visit("lr_decay", options.lr_decay());
  visit("weight_decay", options.weight_decay());
  visit("initial_accumulator_value", options.initial_accumulator_value());
  visit("eps", options.eps());
}

template <class Options>
NamedNumbers numbers_of(Options options) {
  NamedNumbers numbers;
  visit_options(options, [&](const char* name, auto& value) {
    numbers[name] = static_cast<double>(value);
  });
  return numbers;
}

// Throws Error unless the names are those of the options.
template <class Options>
Options options_of(NamedNumbers numbers) {
  Options options(/*lr=*/1);
  visit_options(options, [&](const char* name, auto& value) {
    const auto found = numbers.find(name);
    if (found == numbers.end()) {
      fail("rpc", "the optimizer got no option '", name, "'");
    }
    value = static_cast<std::decay_t<decltype(value)>>(found->second);
    numbers.erase(found);
  });
  if (!numbers.empty()) {
    fail("rpc", "the optimizer has no option '", numbers.begin()->first, "'");
  }
  return options;
}

}  // namespace gradwire::rpc
