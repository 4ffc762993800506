// Non-owning typed views of contiguous row-major memory, the host's or another device's. No arithmetic.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>

#include "base/error.h"
#include "tensor/dtype.h"

namespace tessera {

// Up to kMaxRank sizes, outermost first. Rank 0 is a scalar with one element.
class Shape {
 public:
  static constexpr int64_t kMaxRank = 8;

  Shape() = default;
  Shape(std::initializer_list<int64_t> dims) : Shape(std::span<const int64_t>(dims.begin(), dims.size())) {}
  explicit Shape(std::span<const int64_t> dims) : rank_(static_cast<int64_t>(dims.size())) {
    TESSERA_CHECK(rank_ <= kMaxRank, "rank {}", rank_);
    for (size_t i = 0; i < dims.size(); ++i) dims_[i] = dims[i];
  }

  int64_t rank() const { return rank_; }
  int64_t operator[](int64_t axis) const { return dims_[static_cast<size_t>(axis)]; }
  std::span<const int64_t> dims() const { return {dims_.data(), static_cast<size_t>(rank_)}; }
  int64_t num_elements() const {
    int64_t count = 1;
    for (const int64_t dim : dims()) count *= dim;
    return count;
  }
  bool operator==(const Shape&) const = default;
  std::string to_string() const;  // "[2, 3]"

 private:
  int64_t rank_ = 0;
  std::array<int64_t, kMaxRank> dims_ = {};
};

class Device;           // tensor/device.h
Device& host_device();  // tensor/device.h
[[noreturn]] void refuse_host_access(const Device& device, const Shape& shape);

// `Byte` is std::byte or const std::byte.
template <typename Byte>
class BasicTensorView {
 public:
  template <typename T>
  using Like = std::conditional_t<std::is_const_v<Byte>, const T, T>;

  BasicTensorView() = default;  // empty: no tensor
  // The host's memory.
  BasicTensorView(Like<void>* data, DType dtype, Shape shape)
      : data_(static_cast<Byte*>(data)), dtype_(dtype), shape_(shape) {}
  BasicTensorView(Like<void>* data, DType dtype, Shape shape, Device& device)
      : BasicTensorView(data, dtype, shape) {
    if (&device != &host_device()) device_ = &device;
  }
  // A view of writable memory converts to a read-only one.
  template <typename Other>
  requires(std::is_const_v<Byte> && !std::is_const_v<Other>)
      BasicTensorView(const BasicTensorView<Other>& other)  // NOLINT: conversion wanted
      : data_(other.data_), device_(other.device_), dtype_(other.dtype_), shape_(other.shape_) {}

  bool empty() const { return data_ == nullptr; }
  bool is_on_host() const { return device_ == nullptr; }
  Device& device() const { return is_on_host() ? host_device() : *device_; }
  // Where the device finds the elements. The host may compare addresses; it reads through bytes() or as().
  Byte* address() const { return data_; }
  // The host's way to the bytes; asking for another device's is a bug.
  Byte* bytes() const {
    if (!is_on_host()) refuse_host_access(*device_, shape_);
    return data_;
  }
  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  int64_t dim(int64_t axis) const { return shape_[axis]; }
  int64_t num_elements() const { return shape_.num_elements(); }
  int64_t size_bytes() const { return num_elements() * dtype_bytes(dtype_); }

  // The host's way to the elements, as T; a mismatched type is a bug, and so is another device's memory.
  template <typename T>
  Like<T>* as() const {
    TESSERA_CHECK(DTypeOf<T>::value == dtype_, "asked for {}, tensor is {}", dtype_name(DTypeOf<T>::value),
                  dtype_name(dtype_));
    return reinterpret_cast<Like<T>*>(bytes());
  }

  // Rows [begin, end) of the outermost axis.
  BasicTensorView rows(int64_t begin, int64_t end) const {
    TESSERA_CHECK(shape_.rank() >= 1 && 0 <= begin && begin <= end && end <= shape_[0], "rows [{}, {}) of {}",
                  begin, end, shape_.to_string());
    std::array<int64_t, Shape::kMaxRank> dims = {};
    for (int64_t i = 0; i < shape_.rank(); ++i) dims[static_cast<size_t>(i)] = shape_[i];
    dims[0] = end - begin;
    const int64_t row_bytes = shape_[0] == 0 ? 0 : size_bytes() / shape_[0];
    return like_this(data_ + begin * row_bytes, Shape({dims.data(), static_cast<size_t>(shape_.rank())}));
  }

  // A view of the same elements with another shape of equal size.
  BasicTensorView reshaped(Shape shape) const {
    TESSERA_CHECK(shape.num_elements() == num_elements(), "{} as {}", shape_.to_string(), shape.to_string());
    return like_this(data_, shape);
  }

 private:
  template <typename Other>
  friend class BasicTensorView;

  BasicTensorView like_this(Byte* data, const Shape& shape) const {
    BasicTensorView result(data, dtype_, shape);
    result.device_ = device_;
    return result;
  }

  Byte* data_ = nullptr;
  Device* device_ = nullptr;  // null: the host
  DType dtype_ = DType::kF32;
  Shape shape_;
};

using TensorView = BasicTensorView<std::byte>;
using ConstTensorView = BasicTensorView<const std::byte>;

}  // namespace tessera
