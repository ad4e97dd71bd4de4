#include "scratch.h"

#include <map>
#include <mutex>
#include <new>

namespace jcc {
namespace {

struct Pool {
  std::mutex mutex;
  std::multimap<size_t, char*> blocks;  // by size
  size_t kept = 0;
};

Pool& ThePool() {
  static Pool& pool = *new Pool;  // never destroyed: threads may still run while the process exits
  return pool;
}

void Free(char* data) { ::operator delete(data, std::align_val_t{kAlignment}); }

}  // namespace

Scratch::Scratch(size_t bytes) : size_(Aligned(bytes)) {
  if (bytes == 0) return;
  Pool& pool = ThePool();
  {
    std::lock_guard lock(pool.mutex);
    const auto found = pool.blocks.lower_bound(size_);
    // A block more than twice too large is left for whoever needs it.
    if (found != pool.blocks.end() && found->first / 2 <= size_) {
      size_ = found->first;
      data_ = found->second;
      pool.kept -= size_;
      pool.blocks.erase(found);
      return;
    }
  }
  data_ = static_cast<char*>(::operator new(size_, std::align_val_t{kAlignment}));
}

Scratch::~Scratch() {
  if (data_ == nullptr) return;
  Pool& pool = ThePool();
  std::lock_guard lock(pool.mutex);
  pool.blocks.emplace(size_, data_);
  pool.kept += size_;
  // Over the bound, the smallest go first: they are the cheapest to get again.
  while (pool.kept > kScratchKept) {
    const auto smallest = pool.blocks.begin();
    pool.kept -= smallest->first;
    Free(smallest->second);
    pool.blocks.erase(smallest);
  }
}

}  // namespace jcc
