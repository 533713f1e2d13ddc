#pragma once

namespace gradwire::compat {

// Makes this process the worker of this number for distributed autograd. Torch
// keeps the first number for good; here another one takes its place. Not while
// messages of distributed autograd may arrive.
void start_dist_autograd(int worker);

}  // namespace gradwire::compat
