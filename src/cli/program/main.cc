#include "cli/program/app.h"

int main(int argc, char** argv) {
  return tessera::program_main(std::vector<std::string>(argv + 1, argv + argc), tessera::commands());
}
