// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/spans.h"

#include "core/system/processors.h"
#include "kernels/cpu/element.h"
#include "kernels/cpu/lanes.h"
#include "kernels/functors.h"

#define INLINE LOCKSTEP_LANES_INLINE

namespace lockstep {
namespace {

// to[i] = function(from[i]...), 16 elements at a time. to may alias one of from.
template <typename F, typename To, typename... From>
INLINE void for_each_element(std::int64_t count, F function, To* to, const From*... from) {
  using Vector = Lanes<16>::Float;
  std::int64_t i = 0;
  for (; i + 16 <= count; i += 16) store(to + i, function(load<Vector>(from + i)...));
  for (; i < count; ++i) store(to + i, function(load<float>(from + i)...));
}

// Calls body(T()) with the element type T.
template <typename Body>
INLINE void as_elements(DType type, Body body) {
  with_element(
      type, [&](auto element) __attribute__((always_inline)) { body(typename decltype(element)::type()); });
}

}  // namespace

void cast_span(const Cast& a) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    as_elements(
        a.from_type, [&]<typename From>(From) __attribute__((always_inline)) {
          as_elements(
              a.to_type, [&]<typename To>(To) __attribute__((always_inline)) {
                auto* to = static_cast<To*>(a.to);
                const auto* from = static_cast<const From*>(a.from);
                if (a.write == Write::accumulate) {
                  const float factor = a.factor == nullptr ? 1 : *a.factor;
                  for_each_element(
                      a.count,
                      [factor](auto x, auto sum) __attribute__((always_inline)) { return sum + x * factor; },
                      to, from, static_cast<const To*>(to));
                } else if (a.factor == nullptr) {
                  for_each_element(
                      a.count, [](auto x) __attribute__((always_inline)) { return x; }, to, from);
                } else {
                  for_each_element(
                      a.count,
                      [factor = *a.factor](auto x) __attribute__((always_inline)) { return x * factor; }, to,
                      from);
                }
              });
        });
  });
}

void add_span(const Addition& a) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    as_elements(
        a.type, [&]<typename T>(T) __attribute__((always_inline)) {
          for_each_element(
              a.count, [](auto x, auto y) __attribute__((always_inline)) { return x + y; },
              static_cast<T*>(a.sum), static_cast<const T*>(a.a), static_cast<const T*>(a.b));
        });
  });
}

void scale_span(const Scaling& a) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    as_elements(
        a.type, [&]<typename T>(T) __attribute__((always_inline)) {
          auto* values = static_cast<T*>(a.values);
          for_each_element(
              a.count, [factor = a.factor](auto x) __attribute__((always_inline)) { return x * factor; },
              values, static_cast<const T*>(values));
        });
  });
}

void activation_forward_span(const ActivationForward& a) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    with_any_activation(
        a.activation, [&](auto function) __attribute__((always_inline)) {
          as_elements(
              a.type, [&]<typename T>(T) __attribute__((always_inline)) {
                for_each_element(a.count, function, static_cast<T*>(a.y), static_cast<const T*>(a.x));
              });
        });
  });
}

void activation_backward_span(const ActivationBackward& a) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    with_any_activation(
        a.activation, [&](auto function) __attribute__((always_inline)) {
          as_elements(
              a.type, [&]<typename T>(T) __attribute__((always_inline)) {
                for_each_element(
                    a.count,
                    [function](auto y, auto y_gradient)
                        __attribute__((always_inline)) { return function.gradient(y, y_gradient); },
                    static_cast<T*>(a.x_gradient), static_cast<const T*>(a.y),
                    static_cast<const T*>(a.y_gradient));
              });
        });
  });
}

void sum_into_span(const SumInto& a) {
  return for_this_processor([&]() LOCKSTEP_PROCESSOR_BODY {
    as_elements(
        a.type, [&]<typename T>(T) __attribute__((always_inline)) {
          auto* to = static_cast<T*>(a.to);
          for_each_element(
              a.count, [](auto x, auto y) __attribute__((always_inline)) { return x + y; }, to,
              static_cast<const T*>(to), a.from);
        });
  });
}

}  // namespace lockstep
