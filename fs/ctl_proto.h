/*
 * Control protocol between the `sluice` command and the daemon of a mount.
 *
 * Socket: unix stream at RUNDIR/<first 16 hex of sha256(canonical mount point)>.sock, RUNDIR = /run/sluice for root, else
 * $XDG_RUNTIME_DIR/sluice (0700; socket 0600; the daemon checks SO_PEERCRED: root or the daemon's own uid).
 * The client sends one JSON object on one line (<= 1 MiB; longer path lists go in "paths" of several requests, or behind that of a warmup), the daemon answers
 * with JSON lines and closes. The last line has "event":"done" and "exit": the command's exit code (0 done, 1 failed, 3 time ran out), and "message" when exit is not 0.
 * Where the daemon ends before a verb is done, for an upgrade, say, that line has "again":true, and where it is killed there is none: the socket is the supervisor's, so the client may
 * ask the next daemon, with "again":true and what is left of timeout_s. Whether it may, of each verb: tools/ctl_again.c.
 *
 * Paths are relative to the mount point, no leading '/', "" = root. warmup, evict, pin, unpin and wait look behind symlinks; those that lead out of the mount are errors.
 *
 * request                                                       lines before "done"
 * {"verb":"status"}                                             {"event":"status", ...the fields of `sluice status --json`}
 * {"verb":"info","paths":[...]}                                 {"event":"info","path":...,...} one per path, or {"event":"error","path":,"error":}
 * {"verb":"warmup","paths":[],"parallel":8,"check":false,"evict":false,"background":false,"timeout_s":0,"download_limit":0,"node":0,"nodes":0,"list":false}
 *       list: further paths come behind the request, a JSON string on each line, an empty line ends them; node, nodes: one share of the files (warm_share()); download_limit: bytes a second.
 *       {"event":"progress", the counts of struct warm_progress (warm.h), "state","counting"} about 4 a second, {"event":"error","path":,"error":,"errno":},
 *       {"event":"warning","message":} where the cache has no room for all, at the end one more progress; with background: {"event":"job","id":N} and done at once. "check": what is not wholly here, nothing fetched: {"event":"check","path":,"cached_bytes":,"size":}, exit 1 if there is any;
 *       "evict": {"event":"evicted","bytes":,"files":}
 * {"verb":"warmup-status"} {"verb":"warmup-status","id":N} {"verb":"warmup-stop","id":N}    {"event":"job","id":,"state":"running|done|failed|stopped|timeout","resumed": + progress fields};
 *       status of one job: with "problems":["PATH: why"], exit 0 done, 1 failed, 3 work is left
 * {"verb":"sync","paths":[],"incremental":false,"background":false,"parallel":16}
 *       {"event":"sync","id":,"path":,"state":"running|done|failed|stopped","mode":"full|incremental","names":,"directories":,"changed":,"left_out":,"errors":,"names_per_second":,
 *       "elapsed_ms":,"error":} for each path about 4 times a second and once at its end; {"event":"error","path":,"error":} for each directory that could not be listed
 * {"verb":"sync-status"}                                        the same line, once, of each sync that runs or ended lately
 * {"verb":"evict","paths":[]}                                   {"event":"evicted","bytes":,"files":}, errors
 * {"verb":"pin","paths":[],"latest":N}  {"verb":"unpin",...}    paths may be globs with latest ('ckpt/STAR.pt'); {"event":"pinned","path":} per match; {"event":"progress","names_marked":} of paths, each 250 ms; an unpin asked
 *       again may find nothing left to unpin
 * {"verb":"wait","paths":[],"timeout_s":60}                     progress lines {"event":"progress","files_left":,"bytes_left":}
 * {"verb":"publish","action":"retry"|"skip","paths":[]}
 * {"verb":"conflicts","action":"list","paths":[]}               {"event":"conflict","id":,"path":,"state":"conflict|open|parked","size":,"lost_at":,"base_etag":,"winner_etag":,...};
 *       no id while writers have the file open, or when parked; without action and paths: list all
 * {"verb":"conflicts","action":"show","id":N | "paths":[ONE]}   the same with "local_bytes","complete"
 * {"verb":"conflicts","action":"keep-mine|keep-theirs|save-as","id":N | "paths":[ONE],"to":}   {"event":"resolved","id":,"path":,"action":,"size":}
 * {"verb":"checkpoints","paths":[],"list":false}               {"event":"checkpoint","path":,"type":"file|directory","files":,"bytes":,"mtime":,"state":"dirty|uploading|published|verified",
 *       "cached_bytes":,"cached_percent":,"pinned":,"safe":}, the newest first; list: directories are read from the store first
 * {"verb":"link","action":"list","paths":[]}                    {"event":"link","path":,"source":,"state":"ok|degraded|being removed","error":,...}, of all without paths
 * {"verb":"link","action":"show","paths":[ONE]}                 the same with "endpoint" and "options"
 * {"verb":"link","action":"add","source":"s3://...","paths":[ONE],"options":{NAME:TEXT}}   {"event":"linked",...}; {"event":"warning","message":}
 * {"verb":"link","action":"set","paths":[ONE],"options":{NAME:TEXT|null}}                  {"event":"linked",...}
 * {"verb":"link","action":"rm","paths":[ONE],"drain":false,"timeout_s":0}                  progress as wait; {"event":"unlinked","path":}
 * {"verb":"link","action":"sync","paths":[ONE]}                 lists all below now
 * {"verb":"rmdir","paths":[],"force":false}                    {"event":"removed","path":} of each, errors; force: with the bytes of its own marker
 * {"verb":"drain","timeout_s":0}                                progress as wait
 * {"verb":"config"}                                             {"event":"config","text":}
 * {"verb":"upgrade","program":"/ABSOLUTE"}                      the program was found fit, this process ends and it goes on
 * {"verb":"stop"}                                               progress as wait while the daemon makes local state durable, then it unmounts (a mount in use, also through a bind mount or in another mount namespace: exit 1, and it goes on), exits
 */
#pragma once
#define CTL_MAX_LINE     (1u << 20)
#define CTL_PARALLEL_MAX 64 /* of a warmup */
#include <sys/types.h>
/* Path of the socket for a mount point (canonical absolute path), owned by the caller. */
char *ctl_socket_path(const char *mountpoint);
/* The same for a mount of another user (root looks after everybody's). */
char *ctl_socket_path_of(const char *mountpoint, uid_t uid);
/* Where a supervisor that gave up says why, in one line; the next mount removes it. */
char *ctl_failed_path_of(const char *mountpoint, uid_t uid);
