// The computing half of the double: from what cuDNN was told to numbers.
#pragma once

#include <cudnn.h>

#include <cstdint>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

using Name = cudnnBackendAttributeName_t;
using Numbers = std::vector<int64_t>;

// Thrown where the double, or cuDNN, does not do as it is asked. `why` is for people; empty where nobody need know.
struct Refusal : std::runtime_error {
  Refusal(cudnnStatus_t status, const std::string& why = "") : std::runtime_error(why), status(status) {}
  cudnnStatus_t status;
};

// What cuDNN was told about one descriptor. A record keeps those that it refers to, which so outlive their descriptors.
struct Record {
  std::map<Name, Numbers> numbers;  // integers, enumerators and addresses
  std::map<Name, std::vector<std::shared_ptr<const Record>>> parts;
  std::shared_ptr<void> device;  // that the double gave it

  const Numbers& list(Name name) const { return Find(numbers, name); }
  int64_t number(Name name) const { return Find(numbers, name).at(0); }
  const Record& part(Name name) const { return *Find(parts, name).at(0); }

 private:
  template <class Map>
  static const typename Map::mapped_type& Find(const Map& map, Name name) {
    const auto found = map.find(name);
    if (found == map.end())
      throw Refusal(CUDNN_STATUS_NOT_SUPPORTED, "nothing told of attribute " + std::to_string(name));
    return found->second;
  }
};

// Executes an operation graph on the memory of a variant pack: a convolution or one of its gradients, then any
// additions of a broadcast tensor and ReLUs. All is computed in double, and rounded once.
void Compute(const Record& graph, const Record& pack, bool swaps_padding);
