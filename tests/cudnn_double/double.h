// What a test tells the double and asks of it, from any thread. double.cc says what the double is.
#pragma once

#include <cstdint>

#pragma GCC visibility push(default)
extern "C" {

// The GPU that handles and ordinals stand for, in the JSON form of cuDNN's device properties. Needed first.
void double_set_device(const char* json);

// Successful executions so far.
int64_t double_executions();
// The bytes of workspace of the last one; -1 before the first.
int64_t double_last_workspace();
// The global index of its engine; -1 before the first.
int64_t double_last_engine();
// Handles that were created and not destroyed.
int64_t double_handles();
// Descriptors that were described and not destroyed.
int64_t double_records();

// Engine -1, in the next two: every engine that has no entry of its own.

// Plans of `engine` return `status` and compute nothing. 0 clears; (-1, 0) clears all.
void double_fail_engine(int64_t engine, int status);
// Plans of `engine` take that much longer. A negative delay clears.
void double_delay_engine(int64_t engine, int64_t microseconds);
// cudnnCreate returns `status`. 0 clears.
void double_fail_create(int status);
// A mutation, to show that tests notice: pre and post padding change places.
void double_swap_padding(int on);

// As at the start, but for the device, handles and descriptors.
void double_reset();
}
#pragma GCC visibility pop
