// A bounded, thread-safe cache of prepared plans, least recently used first out. Shared by the backends.
#pragma once

#include <cstring>
#include <list>
#include <memory>
#include <mutex>
#include <string_view>
#include <type_traits>
#include <unordered_map>

namespace jcc {

// Key: plain data without padding, compared by its bytes.
template <typename Key, typename Plan>
class PlanCache {
  static_assert(std::has_unique_object_representations_v<Key>);

 public:
  struct Info {
    size_t size, capacity, hits, misses;
  };

  explicit PlanCache(size_t capacity) : capacity_(capacity) {}

  // The plan for `key`, made by `make()` if there is none. No lock is held meanwhile, so two threads may make the same
  // plan; the first one stays. A plan in use outlives its removal.
  template <typename Make>
  std::shared_ptr<const Plan> Get(const Key& key, const Make& make) {
    if (auto plan = Find(key)) return plan;
    std::shared_ptr<const Plan> plan = make();
    std::lock_guard lock(mutex_);
    if (index_.count(Bytes(key)) == 0) Insert(key, plan);
    return plan;
  }

  // Puts `plan` in the place of the one for `key`.
  void Replace(const Key& key, std::shared_ptr<const Plan> plan) {
    std::lock_guard lock(mutex_);
    if (const auto found = index_.find(Bytes(key)); found != index_.end()) {
      found->second->second = std::move(plan);
    } else {
      Insert(key, std::move(plan));
    }
  }

  void SetCapacity(size_t capacity) {
    std::lock_guard lock(mutex_);
    capacity_ = capacity;
    Shrink();
  }

  Info GetInfo() const {
    std::lock_guard lock(mutex_);
    return {entries_.size(), capacity_, hits_, misses_};
  }

 private:
  using Entries = std::list<std::pair<Key, std::shared_ptr<const Plan>>>;

  static std::string_view Bytes(const Key& key) { return {reinterpret_cast<const char*>(&key), sizeof key}; }

  std::shared_ptr<const Plan> Find(const Key& key) {
    std::lock_guard lock(mutex_);
    const auto found = index_.find(Bytes(key));
    if (found == index_.end()) {
      ++misses_;
      return nullptr;
    }
    ++hits_;
    entries_.splice(entries_.begin(), entries_, found->second);
    return found->second->second;
  }

  void Insert(const Key& key, std::shared_ptr<const Plan> plan) {
    if (capacity_ == 0) return;
    entries_.emplace_front(key, std::move(plan));
    index_.emplace(Bytes(entries_.front().first), entries_.begin());
    Shrink();
  }

  void Shrink() {
    while (entries_.size() > capacity_) {
      index_.erase(Bytes(entries_.back().first));
      entries_.pop_back();
    }
  }

  mutable std::mutex mutex_;
  size_t capacity_, hits_ = 0, misses_ = 0;
  Entries entries_;                                                         // the most recently used first
  std::unordered_map<std::string_view, typename Entries::iterator> index_;  // views into entries_
};

}  // namespace jcc
