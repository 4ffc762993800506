// tessera_mpi_ranks: the side of `tessera-bench comm` that is MPI_Reduce_scatter and MPI_Allgather of Open
// MPI or another MPI (comm_side.h). Built where MPI is found; started by mpirun.
#include <mpi.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "bench/comm/comm_side.h"

namespace {

enum Command : int64_t { kVerify, kRun, kEnd };

class MpiRanks {
 public:
  MpiRanks() {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &size_);
  }

  int rank() const { return rank_; }
  int size() const { return size_; }

  // On rank 0.
  int64_t verify(int64_t count) { return static_cast<int64_t>(obey(post(kVerify, count))); }
  double run(int64_t count) { return obey(post(kRun, count)); }
  void end() { post(kEnd, 0); }

  // On the other ranks, until the end. A blocking broadcast would spin and take processor time from the side
  // being measured.
  void follow() {
    for (;;) {
      Order order{};
      MPI_Request request;
      MPI_Ibcast(&order, 2, MPI_INT64_T, 0, MPI_COMM_WORLD, &request);
      wait_asleep(&request);
      if (order.command == kEnd) return;
      obey(order);
    }
  }

 private:
  struct Order {
    int64_t command;
    int64_t count;
  };

  static void wait_asleep(MPI_Request* request) {
    for (int done = 0;;) {
      MPI_Test(request, &done, MPI_STATUS_IGNORE);
      if (done != 0) return;
      usleep(1000);
    }
  }

  Order post(Command command, int64_t count) {
    Order order{command, count};
    MPI_Request request;
    MPI_Ibcast(&order, 2, MPI_INT64_T, 0, MPI_COMM_WORLD, &request);
    wait_asleep(&request);
    return order;
  }

  // Parts of equal size: the last one is padded.
  void prepare(int64_t count) {
    part_ = (count + size_ - 1) / size_;
    input_.assign(static_cast<size_t>(part_ * size_), 0.0f);
    output_.assign(static_cast<size_t>(part_ * size_), 1.0f);
  }

  void sum() {
    const std::vector<int> counts(static_cast<size_t>(size_), static_cast<int>(part_));
    MPI_Reduce_scatter(input_.data(), output_.data() + rank_ * part_, counts.data(), MPI_FLOAT, MPI_SUM,
                       MPI_COMM_WORLD);
    MPI_Allgather(MPI_IN_PLACE, 0, MPI_DATATYPE_NULL, output_.data(), static_cast<int>(part_), MPI_FLOAT,
                  MPI_COMM_WORLD);
  }

  // The seconds of the slowest rank, or the number of wrong elements on all ranks; on rank 0.
  double obey(const Order& order) {
    if (order.count != prepared_) prepare(order.count);
    prepared_ = order.count;
    const bool verifies = order.command == kVerify;
    for (int64_t i = 0; verifies && i < order.count; ++i) {
      input_[static_cast<size_t>(i)] = tessera::comm_input(rank_, i);
    }
    MPI_Barrier(MPI_COMM_WORLD);
    const double begin = MPI_Wtime();
    sum();
    double answer = MPI_Wtime() - begin;
    if (verifies) {
      answer = static_cast<double>(tessera::count_comm_errors(output_.data(), order.count, size_));
      std::fill(input_.begin(), input_.end(), 0.0f);
    }
    double of_all = 0;
    MPI_Reduce(&answer, &of_all, 1, MPI_DOUBLE, verifies ? MPI_SUM : MPI_MAX, 0, MPI_COMM_WORLD);
    return of_all;
  }

  int rank_ = 0, size_ = 1;
  int64_t prepared_ = 0, part_ = 0;
  std::vector<float> input_, output_;
};

// "Open MPI v4.1.4" of "Open MPI v4.1.4, package: Debian OpenMPI, ident: ...".
std::string library_name() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING];
  int length = 0;
  MPI_Get_library_version(text, &length);
  const std::string name(text, static_cast<size_t>(length));
  return name.substr(0, name.find_first_of(",\n"));
}

}  // namespace

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  {
    MpiRanks ranks;
    if (ranks.rank() > 0) {
      ranks.follow();
    } else {
      tessera::serve_comm_side(
          library_name(), ranks.size(), [&](int64_t count) { return ranks.verify(count); },
          [&](int64_t count) { return ranks.run(count); });
      ranks.end();
    }
  }
  MPI_Finalize();
  return 0;
}
