// Configuration files of other programs, for tests.
#pragma once

#include <gtest/gtest.h>

#include <string>

#include "base/error.h"
#include "expect_error.h"
#include "settings/config_file.h"
#include "settings/run_settings.h"
#include "test_folder.h"

namespace tessera {

class ForeignDatasetsTest : public ::testing::Test {
 protected:
  RunSettings apply(const std::string& yaml) const {
    RunSettings spec;
    FlagTable table;
    declare_training_flags(&table, &spec);
    apply_config_text(yaml, ConfigSyntax::kYaml, "run.yaml", &table);
    return spec;
  }
  DatasetOptions options(const std::string& yaml) const {
    const RunSpec spec = apply(yaml);
    return dataset_options(spec.data, spec.data.dataset, "model");
  }
  std::string refusal(const std::string& yaml) const {
    const Error error = error_of([&] { apply(yaml); });
    EXPECT_EQ(error.code(), ExitCode::kBadConfig) << yaml;
    return error.what();
  }

  TestFolder folder_;
};

}  // namespace tessera
