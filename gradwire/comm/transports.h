#pragma once

#include <c10/core/DeviceType.h>

#include <string>
#include <vector>

namespace gradwire {

// A way for ranks to move tensors, chosen by InitOptions::transport.
struct TransportInfo {
  std::string name;
  std::string summary;
  // Where tensors may be.
  std::vector<c10::DeviceType> devices;
};

// All that this build has, the default first.
std::vector<TransportInfo> transports();

// Whether any of them moves tensors on such a device.
bool is_served(c10::DeviceType device);
// "cpu", for errors.
std::string served_devices();

}  // namespace gradwire
