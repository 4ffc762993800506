#include "model/bound_parameters.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "ops/cpu_ops.h"

namespace tessera {
namespace {

class TensorList : public testing::Test {
 protected:
  BoundParameters bind(const std::vector<ModelTensor>& tensors) { return {tensors, DType::kF32, *ops_}; }
  ModelTensor matrix(int64_t group, std::vector<ParameterPart> parts) {
    return {group, ParameterKind::kMatrix, std::move(parts), &weight_, &gradient_};
  }

  ThreadPool pool_{1};
  std::unique_ptr<Ops> ops_ = make_cpu_ops(pool_);
  LinearWeight weight_;
  TensorView gradient_;
};

TEST_F(TensorList, PartsOfATensorStackToOneView) {
  BoundParameters parameters =
      bind({matrix(0, {{"pad", {3, 1}}}), matrix(1, {{"q", {4, 5}}, {"k", {2, 5}}, {"v", {1, 5}}})});
  std::vector<float> weights(static_cast<size_t>(parameters.layout().num_elements())), gradients(weights);
  const auto view_of = [](std::vector<float>& values) {
    return TensorView(values.data(), DType::kF32, {std::ssize(values)});
  };
  parameters.bind(view_of(weights), view_of(gradients));
  EXPECT_EQ(weight_.w_NK.shape(), Shape({7, 5}));
  EXPECT_EQ(weight_.w_NK.as<float>(), weights.data() + kParameterAlignment);
  EXPECT_EQ(gradient_.shape(), Shape({7, 5}));
  EXPECT_EQ(gradient_.as<float>(), gradients.data() + kParameterAlignment);
  EXPECT_EQ(parameters.layout().at("v").offset, kParameterAlignment + 6 * 5);
  parameters.bind(view_of(weights), {});
  EXPECT_FALSE(parameters.has_gradients());
}

TEST_F(TensorList, EqualProductsAreListedOnce) {
  const BoundParameters parameters = bind(
      {matrix(0, {{"a", {4, 5}}}), matrix(1, {{"b", {2, 5}}, {"c", {2, 5}}}), matrix(2, {{"d", {5, 4}}})});
  const std::vector<LinearLimits> products = parameters.layer_products(9, FormsKept::kAll);
  ASSERT_EQ(products.size(), 2u);
  EXPECT_EQ(products[0].max_rows, 9);
  EXPECT_EQ(products[0].weight.N, 4);
  EXPECT_EQ(products[0].weight.packed_rows, 4);
  EXPECT_EQ(products[1].weight.N, 5);
  EXPECT_EQ(parameters.layer_products(9, FormsKept::kNone)[0].weight.packed_rows, 0);
}

TEST_F(TensorList, AGroupOutOfOrderOrPartsThatDoNotStackAreABug) {
  EXPECT_THROW(bind({matrix(1, {{"a", {4, 5}}})}), Error);
  EXPECT_THROW(bind({matrix(0, {{"a", {4, 5}}}), matrix(2, {{"b", {4, 5}}})}), Error);
  EXPECT_THROW(bind({matrix(0, {{"a", {4, 5}}}), matrix(1, {{"b", {4, 5}}}), matrix(0, {{"c", {4, 5}}})}),
               Error);
  EXPECT_THROW(bind({matrix(0, {{"a", {4, 5}}, {"b", {4, 6}}})}), Error);
  EXPECT_THROW(bind({matrix(0, {{"a", {4, 0}}})}), Error);
}

}  // namespace
}  // namespace tessera
