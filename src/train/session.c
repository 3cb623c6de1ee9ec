/* The common part of train, eval and generate; see session.h. */
#include "train/session.h"
#include "base/log.h"
#include <string.h>

enum mt_status mt_session_open(struct mt_comm *comm, const struct mt_config *config, int64_t max_B, int64_t T, int training,
                               struct mt_session *session)
{
  *session = (struct mt_session){.comm = comm, .config = config, .same = 1};
  const char *name = strcmp(config->parallel.device, "auto") ? config->parallel.device : "cpu";
  enum mt_status status = mt_agree(comm, mt_device_open(name, comm->cluster->place[comm->rank].threads, &session->device));
  if (status == MT_OK)
    status = mt_state_find(comm, config, &session->checkpoint, &session->progress, &session->same);
  if (status == MT_OK && !session->checkpoint && !training) {
    char *dir = mt_state_dir(config);
    if (comm->rank == 0)
      mt_error("%s: found no complete checkpoint, expected one to read weights from", dir);
    mt_free(dir);
    status = MT_USAGE;
  }
  if (status == MT_OK)
    status = mt_model_new(comm, session->device, config, max_B, T, training, &session->model);
  if (status == MT_OK && session->checkpoint)
    status = mt_state_load(comm, session->model, session->checkpoint, training);
  else if (status == MT_OK)
    mt_model_init(session->model, (uint64_t)config->train.seed);
  if (status != MT_OK) {
    mt_session_close(session);
    return status;
  }
  mt_model_publish(session->model);
  return MT_OK;
}

void mt_session_close(struct mt_session *session)
{
  mt_model_free(session->model);
  if (session->device)
    session->device->ops->close(session->device);
  mt_free(session->checkpoint);
  *session = (struct mt_session){0};
}
