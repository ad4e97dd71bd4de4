// Finds the fastest plan of a problem by trial.
#pragma once

#include <functional>
#include <string>

#include "cudnn/conv.h"
#include "cudnn/device.h"

namespace jcc::cudnn {

// Where the winners of earlier trials are kept, by a text that says everything they depend on. Python owns it.
struct WinnerStore {
  std::function<std::string(const std::string& key)> find;  // "" where there is none
  std::function<void(const std::string& key, const std::string& name)> keep;
  std::function<void(const std::string& message)> log;
};
void SetWinnerStore(WinnerStore store);

// The name of the plan that has won for this problem, on this kind of GPU and with this cuDNN; "" if none has.
std::string StoredWinner(const Problem& problem);

// Times the plans on scratch memory and keeps the name of the fastest; "" where the trials were not possible.
std::string Tune(const Problem& problem, const Handle& handle, const Context& context);

}  // namespace jcc::cudnn
