/* The cluster's JSON form; see cluster.h. */
#include "topology/cluster.h"
#include <stddef.h>
#include <string.h>

mt_json *mt_cluster_to_json(const struct mt_cluster *cluster)
{
  (void)cluster;
  return NULL;
}

enum mt_status mt_cluster_from_json(const char *name, const mt_json *json, struct mt_cluster **cluster)
{
  (void)name;
  (void)json;
  (void)cluster;
  return MT_CORRUPT;
}

enum mt_status mt_cluster_read(const char *path_or_sizes, struct mt_cluster **cluster)
{
  if (*path_or_sizes && path_or_sizes[strspn(path_or_sizes, "0123456789,")] == 0)
    return mt_cluster_from_sizes(path_or_sizes, cluster);
  mt_json *json;
  MT_TRY(mt_json_read(path_or_sizes, &json));
  enum mt_status status = mt_cluster_from_json(path_or_sizes, json, cluster);
  mt_json_free(json);
  return status;
}
