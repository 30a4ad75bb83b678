// SPDX-License-Identifier: Apache-2.0
#include "data/batch_loader.h"

#include <algorithm>
#include <condition_variable>
#include <exception>
#include <limits>
#include <mutex>
#include <numeric>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <pthread.h>
#include <sched.h>

#include "core/error.h"
#include "core/log.h"
#include "core/system/processor_time.h"
#include "core/tensor/buffer.h"
#include "core/text/text.h"
#include "core/timeline.h"
#include "data/loader_pace.h"
#include "data/sample_places.h"
#include "data/sets/damage_log.h"
#include "kernels/host_augmentation.h"
#include "kernels/pixel_targets.h"

namespace lockstep {
namespace {

// Keeps the error of the lowest piece: the one that a single thread would have had first.
struct FirstError {
  std::int64_t piece = 0;
  std::exception_ptr error;

  void offer(std::int64_t other_piece, const std::exception_ptr& other) {
    if (other == nullptr || (error != nullptr && piece < other_piece)) return;
    piece = other_piece;
    error = other;
  }
};

struct Slot {
  Buffer memory;
  std::span<SampleId> samples;
  Batch batch;
  std::int64_t ticket = -1;      // of the micro-batch that it holds or is being filled with
  std::int64_t pieces_left = 0;  // until it is ready
  std::int64_t fillers = 0;      // places that hold padding, or copies of weight 0
  std::int64_t left_out = 0;     // samples, without their copies
  double lost_weight = 0;        // of the samples left out
  FirstError undecodable;        // error of the first sample left out
  FirstError error;              // next() throws it instead of returning the batch
};

// Bytes of a batch's images.
std::size_t bytes_of_images(const LoaderOptions& options, const ImageShape& image) {
  return align_up(static_cast<std::size_t>(options.batch * image.bytes()));
}

struct SlotParts {
  bool on_device = false;  // row indices instead of images
  bool masks = false;      // labels of pixels instead of images' labels
};

Slot make_slot(const LoaderOptions& options, const ImageShape& image, const SlotParts& parts) {
  const bool on_device = parts.on_device;
  const std::size_t image_bytes = on_device ? 0 : bytes_of_images(options, image);
  const std::size_t row_bytes = align_up(static_cast<std::size_t>(options.batch) * sizeof(float));
  const Shape labels = parts.masks ? Shape{options.batch, image.height, image.width} : Shape{options.batch};
  const DType label_type = parts.masks ? DType::u8 : DType::i32;
  const std::size_t label_bytes = align_up(static_cast<std::size_t>(labels.elements()) * size_of(label_type));
  const std::size_t sample_bytes = align_up(static_cast<std::size_t>(options.batch) * sizeof(SampleId));
  static_assert(sizeof(float) == sizeof(std::int32_t));
  const std::size_t weights_at = image_bytes + label_bytes, samples_at = weights_at + row_bytes;
  const std::size_t bytes = samples_at + sample_bytes + (on_device ? row_bytes : 0);
  Slot slot{.memory = Buffer(bytes, options.device, MemoryKind::pinned_host)};
  std::byte* data = slot.memory.data();
  slot.samples = {reinterpret_cast<SampleId*>(data + samples_at), static_cast<std::size_t>(options.batch)};
  slot.batch = {.images = {on_device ? nullptr : data,
                           {options.batch, image.height, image.width, image.channels},
                           image.type},
                .labels = {data + image_bytes, labels, label_type},
                .weights = {data + weights_at, {options.batch}, DType::f32},
                .samples = slot.samples};
  if (on_device) {
    slot.batch.rows = {data + samples_at + sample_bytes, {options.batch}, DType::i32};
  }
  return slot;
}

// Samples per judgement of damage, or all of a smaller dataset: fewer say little about the dataset.
constexpr std::int64_t kJudgedSamples = 32;

// The damage in batches that next() returned since the last judgement.
struct JudgedDamage {
  std::int64_t samples = 0;  // without copies and padding
  std::int64_t left_out = 0;
  std::exception_ptr first;  // error of the first sample left out
};

// Batches per judgement of the loader's pace.
constexpr std::int64_t kPaceBatches = 16;

// About four pieces per thread, since decoding times differ between images.
std::int64_t samples_of_a_piece(const LoaderOptions& options) {
  const int threads = options.threads == 0 ? options.most_threads : options.threads;
  return threads == 1 ? options.batch : std::max<std::int64_t>(1, options.batch / (4 * threads));
}

}  // namespace

// Tickets number the micro-batches since the last seek. Each ticket has one slot (ticket modulo ring size),
// which is filled in pieces of some samples. Threads take pieces in order as slots become free; next() waits
// for its micro-batch.
struct BatchLoader::State {
  const Dataset& dataset;
  Shard shard;
  LoaderOptions options;
  SamplePlaces places;
  std::int64_t piece_samples;
  std::int64_t pieces;  // per micro-batch
  bool on_device;       // images are in device memory
  std::vector<Slot> ring;
  DamageLog damage{"left out of their batches"};

  std::mutex mutex;
  std::condition_variable room;  // filling threads wait for a free slot
  std::condition_variable done;  // next() and seek() wait for filled pieces
  std::int64_t first_step = 0;   // target of the last seek, counted over the whole run
  std::int64_t next_piece = 0;   // next to fill: ticket * pieces + piece
  std::int64_t next_read = 0;    // ticket of the next next()
  std::int64_t filling = 0;      // pieces being filled now
  bool seeking = false;
  bool stopping = false;
  JudgedDamage judged;
  std::vector<std::thread> threads;

  // For options.threads = 0: the pace since its last judgement. Only the thread that calls next() uses it.
  std::int64_t pace_batches = -1;  // -1: the next batch begins a measurement
  std::int64_t pace_began_ns = 0;
  std::int64_t pace_waited_ns = 0;
  double pace_processor = 0;  // CPU seconds at its begin

  State(const Dataset& d, Shard s, const LoaderOptions& o)
      : dataset(d),
        shard(s),
        options(o),
        places(d.size(), s.size, o),
        piece_samples(samples_of_a_piece(o)),
        pieces((o.batch + piece_samples - 1) / piece_samples),
        on_device(!d.on_device().empty()) {
    for (int i = 0; i < options.slots; ++i)
      ring.push_back(
          make_slot(options, dataset.image_shape(), {.on_device = on_device, .masks = dataset.has_masks()}));
  }
  ~State() {
    {
      const std::lock_guard lock(mutex);
      stopping = true;
    }
    room.notify_all();
    for (std::thread& thread : threads) thread.join();
  }

  // Starts fewer threads, with a warning, if the system allows no more. Throws IoError if there is none.
  void start_threads(int count) {
    const int rank = current_rank();
    try {
      while (std::ssize(threads) < count) {
        threads.emplace_back([this, rank] {
          const RankScope scope(rank);
          // SCHED_BATCH: this thread does not preempt compute threads when it wakes.
          const sched_param none = {};
          pthread_setschedparam(pthread_self(), SCHED_BATCH, &none);
          work();
        });
      }
    } catch (const std::system_error& error) {
      if (threads.empty())
        throw IoError(fmt::format("the system starts no thread for the loader: {}", error.what()));
      options.most_threads = static_cast<int>(threads.size());
      log::warning("the system starts no more threads for the loader, which has {} now: {}", threads.size(),
                   error.what());
    }
  }

  double processor_seconds() {
    double seconds = 0;
    for (std::thread& thread : threads) seconds += lockstep::processor_seconds(thread);
    return seconds;
  }

  // Called after each batch, with the time that next() waited for it.
  void judge_pace(std::int64_t waited_ns) {
    if (options.threads != 0 || std::ssize(threads) >= options.most_threads) return;
    if (pace_batches < 0) {
      pace_batches = pace_waited_ns = 0;
      pace_began_ns = now_ns();
      pace_processor = processor_seconds();
      return;
    }
    pace_waited_ns += waited_ns;
    if (++pace_batches < kPaceBatches) return;
    const LoaderPace pace{.threads = static_cast<int>(threads.size()),
                          .seconds = seconds_since(pace_began_ns),
                          .waited_seconds = 1e-9 * static_cast<double>(pace_waited_ns),
                          .processor_seconds = processor_seconds() - pace_processor};
    pace_batches = -1;
    start_threads(threads_wanted(pace, options.most_threads));
    if (std::ssize(threads) == pace.threads) return;  // none wanted, or none allowed
    log::info(
        "data.loader_threads = 0: {} threads prepare batches now instead of {}, because {:.1f} % of the time "
        "was spent waiting for batches",
        threads.size(), pace.threads, 100 * pace.waited_seconds / pace.seconds);
  }

  Slot& slot_of(std::int64_t ticket) { return ring[static_cast<std::size_t>(ticket) % ring.size()]; }

  // The last `kept` batches of next() are still in use; each call of next() frees one slot.
  std::int64_t slots_to_fill() const {
    return next_read - options.kept + std::ssize(ring) - next_piece / pieces;
  }
  bool may_fill() const { return !seeking && slots_to_fill() > 0; }
  // Waking threads takes longer than filling a small batch, and they take cores from the compute threads:
  // wait until half of the slots that are filled ahead are free.
  bool worth_waking() const { return 2 * slots_to_fill() >= std::ssize(ring) - options.kept; }

  void work() {
    std::unique_lock lock(mutex);
    for (;;) {
      room.wait(lock, [&] { return stopping || may_fill(); });
      if (stopping) return;
      const std::int64_t ticket = next_piece / pieces;
      const std::int64_t piece = next_piece++ % pieces;
      Slot& slot = slot_of(ticket);
      if (piece == 0) {
        slot.ticket = ticket;
        slot.pieces_left = pieces;
        slot.fillers = 0;
        slot.left_out = 0;
        slot.lost_weight = 0;
        slot.undecodable = slot.error = {};
      }
      ++filling;
      lock.unlock();
      const Filled filled = fill(slot, ticket, piece);
      lock.lock();
      --filling;
      slot.fillers += filled.fillers;
      slot.left_out += filled.left_out;
      slot.lost_weight += filled.lost_weight;
      slot.undecodable.offer(piece, filled.undecodable);
      slot.error.offer(piece, filled.error);
      if (--slot.pieces_left == 0 && slot.error.error == nullptr && slot.lost_weight > 0 &&
          options.tail != Tail::pad)
        share_lost_weight(slot);
      if (slot.pieces_left == 0 || seeking) done.notify_all();
    }
  }

  // Sets the error of a slot without one if it completes a judgement and too many samples are left out.
  void judge_damage(Slot& slot) {
    judged.samples += options.batch - slot.fillers;
    judged.left_out += slot.left_out;
    if (judged.first == nullptr) judged.first = slot.undecodable.error;
    if (judged.samples < std::min(kJudgedSamples, dataset.size())) return;
    const JudgedDamage all = std::exchange(judged, {});
    if (static_cast<double>(all.left_out) > options.most_left_out * static_cast<double>(all.samples))
      slot.error.error = all.first;
  }

  // Training divides the gradient by the whole batch, so samples left out would shrink the step. Evaluation
  // divides by the sum of the weights and needs no correction.
  static void share_lost_weight(Slot& slot) {
    const std::span<float> weights = slot.batch.weights.as<float>();
    const double kept = std::accumulate(weights.begin(), weights.end(), 0.0);
    if (kept == 0) return;
    for (float& weight : weights) weight *= static_cast<float>((kept + slot.lost_weight) / kept);
  }

  struct Filled {
    std::int64_t fillers = 0;
    std::int64_t left_out = 0;
    double lost_weight = 0;
    std::exception_ptr undecodable;  // error of the first sample left out
    std::exception_ptr error;
  };

  Filled fill(Slot& slot, std::int64_t ticket, std::int64_t piece) {
    Filled filled;
    const std::int64_t step = first_step + ticket / options.accumulation;
    const std::int64_t micro = ticket % options.accumulation;
    const std::int64_t micro_batch = shard.rank * options.accumulation + micro;
    const std::int64_t begin = piece * piece_samples, end = std::min(begin + piece_samples, options.batch);
    try {
      SamplePlace next = places.at(step, micro_batch, begin);
      for (std::int64_t i = begin; i < end; ++i) {
        const SamplePlace at = next;
        if (i + 1 < end) {
          next = places.at(step, micro_batch, i + 1);
          if (next.sample >= 0 && !on_device) dataset.will_read(next.sample);
        }
        const std::exception_ptr error = fill_sample(slot, i, at);
        if (error != nullptr && at.alone) fill_sample(slot, i, places.without_samples(at.epoch, i));
        if (at.weight == 0 || at.sample < 0) ++filled.fillers;
        if (error == nullptr || at.weight == 0) continue;
        filled.lost_weight += static_cast<double>(at.weight);
        if (filled.left_out++ == 0) filled.undecodable = error;
      }
    } catch (...) {
      filled.error = std::current_exception();
    }
    return filled;
  }

  // Returns the reason if the sample is left out, else null.
  std::exception_ptr fill_sample(Slot& slot, std::int64_t index, const SamplePlace& at) {
    const auto i = static_cast<std::size_t>(index);
    const auto image_bytes = static_cast<std::size_t>(dataset.image_shape().bytes());
    std::span<std::uint8_t> image;
    if (!on_device)
      image = {static_cast<std::uint8_t*>(slot.batch.images.data) + i * image_bytes, image_bytes};
    std::int32_t unused = 0;
    std::int32_t& label = dataset.has_masks() ? unused : slot.batch.labels.as<std::int32_t>()[i];
    std::span<std::uint8_t> mask;
    if (dataset.has_masks()) {
      const auto pixels = static_cast<std::size_t>(slot.batch.labels.elements() / options.batch);
      mask = slot.batch.labels.as<std::uint8_t>().subspan(i * pixels, pixels);
    }
    float& weight = slot.batch.weights.as<float>()[i];
    std::exception_ptr reason;
    if (at.sample >= 0) {
      try {
        label = options.tail == Tail::pad
                    ? dataset.read(at.sample, image)
                    : dataset.read_augmented(at.sample, {.seed = options.seed, .epoch = at.epoch}, image);
        if (!mask.empty()) dataset.read_mask(at.sample, mask);
        weight = at.weight;
        if (on_device) slot.batch.rows.as<std::int32_t>()[i] = static_cast<std::int32_t>(at.sample);
        slot.samples[i] = {.epoch = static_cast<std::int32_t>(at.epoch),
                           .index = static_cast<std::int32_t>(at.sample)};
        if (options.augmentation != nullptr) (*options.augmentation)(slot.samples[i], image, mask);
        return nullptr;
      } catch (const DataError& error) {
        if (options.on_error == OnError::stop) throw;
        damage.add(at.sample, fmt::format("{}; the sample is left out of its batch", error.what()));
        reason = std::current_exception();
      }
    }
    std::fill(image.begin(), image.end(), std::uint8_t{0});
    std::fill(mask.begin(), mask.end(), kIgnoredPixel);
    if (on_device) slot.batch.rows.as<std::int32_t>()[i] = -1;
    label = 0;
    weight = 0;
    slot.samples[i] = {};
    return reason;
  }
};

BatchLoader::BatchLoader(const Dataset& dataset, Shard shard, const LoaderOptions& options) {
  CHECK(options.batch > 0 && options.accumulation > 0 && options.threads >= 0 && options.most_threads > 0 &&
            options.kept >= 1 && options.slots > options.kept,
        "batch {}, accumulation {}, {} threads (at most {}), {} slots, of which {} are kept", options.batch,
        options.accumulation, options.threads, options.most_threads, options.slots, options.kept);
  CHECK(shard.rank >= 0 && shard.rank < shard.size, "rank {} of {}", shard.rank, shard.size);
  const std::int64_t global = shard.size * options.accumulation * options.batch;
  if (options.tail != Tail::pad && options.tail != Tail::exact && dataset.size() < global) {
    throw ConfigError(fmt::format(
        "the dataset has {} samples, fewer than one global batch of {} ({} x batch {} x "
        "accumulation {}); lower train.batch or train.accumulation, or start fewer ranks",
        dataset.size(), global, counted(shard.size, "rank"), options.batch, options.accumulation));
  }
  CHECK(dataset.size() > 0, "the dataset is empty");
  if (dataset.size() > std::numeric_limits<decltype(SampleId::index)>::max()) {
    throw ConfigError(fmt::format("the dataset has {} samples; the limit is {}", dataset.size(),
                                  std::numeric_limits<decltype(SampleId::index)>::max()));
  }
  state_ = std::make_unique<State>(dataset, shard, options);
  state_->start_threads(std::max(options.threads, 1));
}

BatchLoader::~BatchLoader() = default;

std::int64_t BatchLoader::global_batch() const { return state_->places.global_batch(); }

std::int64_t BatchLoader::dropped_samples() const {
  return state_->options.tail == Tail::drop ? state_->places.tail_samples() : 0;
}
std::int64_t BatchLoader::repeated_samples() const {
  return state_->options.tail == Tail::repeat ? steps_in_epoch(0) * global_batch() - state_->dataset.size()
                                              : 0;
}

std::int64_t BatchLoader::last_batch_samples() const {
  return state_->options.tail == Tail::exact ? state_->places.tail_samples() : 0;
}

std::int64_t BatchLoader::samples_in(std::int64_t first, std::int64_t end) const {
  const bool has_short = last_batch_samples() > 0 && first < end && end == steps_in_epoch(0);
  return (end - first) * global_batch() - (has_short ? global_batch() - last_batch_samples() : 0);
}

std::size_t BatchLoader::batch_bytes() const { return state_->ring.front().memory.bytes(); }
std::size_t BatchLoader::gathered_bytes() const {
  return state_->on_device ? bytes_of_images(state_->options, state_->dataset.image_shape()) : 0;
}
std::size_t BatchLoader::memory_bytes() const { return state_->ring.size() * batch_bytes(); }

const Dataset& BatchLoader::dataset() const { return state_->dataset; }
const LoaderOptions& BatchLoader::options() const { return state_->options; }

std::int64_t BatchLoader::steps_in_epoch(std::int64_t epoch) const {
  return state_->places.steps_before(epoch + 1) - state_->places.steps_before(epoch);
}

std::int64_t BatchLoader::steps_before(std::int64_t epoch, std::int64_t global_batch) const {
  return state_->places.steps_before(epoch, global_batch);
}

std::optional<std::int64_t> BatchLoader::step_after(std::int64_t epoch, std::int64_t steps,
                                                    std::int64_t global_batch) const {
  if (steps == 0) return 0;
  const SamplePlaces& places = state_->places;
  const std::int64_t before = places.steps_before(epoch, global_batch), now = places.steps_before(epoch);
  if (steps == places.steps_before(epoch + 1, global_batch) - before) return steps_in_epoch(epoch);
  // Carried samples count from the start of training.
  const bool carries = state_->options.tail == Tail::carry;
  const std::int64_t samples =
      steps * global_batch + (carries ? before * global_batch - now * this->global_batch() : 0);
  if (samples < 0 || samples % this->global_batch() != 0) return std::nullopt;
  const std::int64_t step = samples / this->global_batch();
  return step <= steps_in_epoch(epoch) ? std::optional(step) : std::nullopt;
}

void BatchLoader::seek(std::int64_t epoch, std::int64_t step) {
  CHECK(epoch >= 0 && step >= 0, "epoch {}, step {}", epoch, step);
  std::unique_lock lock(state_->mutex);
  state_->seeking = true;
  state_->done.wait(lock, [&] { return state_->filling == 0; });
  state_->first_step = state_->places.steps_before(epoch) + step;
  state_->next_piece = state_->next_read = 0;
  for (Slot& slot : state_->ring) slot.ticket = -1;
  state_->pace_batches = -1;
  state_->seeking = false;
  lock.unlock();
  state_->room.notify_all();
}

bool BatchLoader::at_beginning() const {
  const std::lock_guard lock(state_->mutex);
  return state_->first_step == 0 && state_->next_read == 0;
}

const Batch& BatchLoader::next() {
  std::unique_lock lock(state_->mutex);
  const std::int64_t ticket = state_->next_read++;
  if (state_->worth_waking()) state_->room.notify_all();
  Slot& slot = state_->slot_of(ticket);
  const std::int64_t began_ns = now_ns();
  state_->done.wait(lock, [&] { return slot.ticket == ticket && slot.pieces_left == 0; });
  if (slot.error.error == nullptr) state_->judge_damage(slot);
  if (slot.error.error != nullptr) {
    state_->next_read = ticket;
    std::rethrow_exception(slot.error.error);
  }
  lock.unlock();
  state_->judge_pace(now_ns() - began_ns);
  return slot.batch;
}

std::int64_t BatchLoader::left_out() const { return state_->damage.count(); }

int BatchLoader::threads() const { return static_cast<int>(state_->threads.size()); }

double BatchLoader::processor_seconds() const { return state_->processor_seconds(); }

}  // namespace lockstep
