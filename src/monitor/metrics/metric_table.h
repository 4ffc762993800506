// Every metric there is: the one place that names them.
#pragma once

#include <span>
#include <string>

#include "monitor/metrics/exposition.h"

namespace tessera {

enum class Metric {
  // The job, at the endpoint of rank 0.
  kTrainLoss,
  kTrainGradNorm,
  kTrainLearningRate,
  kTrainTokensPerSecond,
  kTrainStep,
  kTrainMaxSteps,
  kTrainEpoch,
  kEtaSeconds,
  kEvalLoss,
  kTokensTotal,
  kStepSeconds,
  kSkippedStepsTotal,
  kLossSpikesTotal,
  kNonfiniteStepsTotal,
  kMfuRatio,
  kFlops,
  kPeakFlops,
  kClockHertz,
  kMemoryPlannedBytes,
  kRankLagSeconds,
  kRankComputeSeconds,
  kRankWaitSeconds,
  kCheckpointAgeSeconds,
  kCheckpointSeconds,
  kCheckpointBytes,
  kCheckpointsTotal,
  kCheckpointFailuresTotal,
  kOffloadBytesTotal,
  kOffloadWaitSecondsTotal,
  kLogWarningsTotal,
  // A node, at the endpoint of its first rank.
  kBuildInfo,
  kStartTimeSeconds,
  kRestartsTotal,
  kLastStepAgeSeconds,
  kProgressAgeSeconds,
  kProgressLimitSeconds,
  kStopRequested,
  kMemoryBytes,
  kCollectivesTotal,
  kCollectiveSecondsTotal,
  kCollectiveBytesTotal,
  kNetworkBytesTotal,
  kCpuThrottledSecondsTotal,
  kCpuFrequencyHertz,
  kNumaFreeBytes,
  kNumaMissPagesTotal,
  kTcpSegmentsSentTotal,
  kTcpRetransmitsTotal,
  kRdmaCounterTotal,
  kGpuMemoryUsedBytes,
  kGpuMemoryTotalBytes,
  kGpuUtilizationRatio,
  kGpuSmClockHertz,
  kGpuPowerWatts,
  kGpuTemperatureCelsius,
  kGpuThrottled,
  kDiskReadBytesTotal,
  kDiskWrittenBytesTotal,
  kDiskFreeBytes,
  kDiskSizeBytes,
};

const MetricInfo& info_of(Metric metric);
std::span<const MetricInfo> all_metrics();

// The table of docs/operations.md.
std::string metrics_markdown();

}  // namespace tessera
