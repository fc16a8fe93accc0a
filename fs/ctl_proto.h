/*
 * Control protocol between the `sluice` command and the daemon of a mount.
 *
 * Socket: unix stream at RUNDIR/<first 16 hex of sha256(canonical mount point)>.sock, RUNDIR = /run/sluice for root, else
 * $XDG_RUNTIME_DIR/sluice (0700; socket 0600; the daemon checks SO_PEERCRED: root or the daemon's own uid).
 * The client sends one JSON object on one line (<= 1 MiB, longer path lists go in "paths" of several requests), the daemon answers
 * with JSON lines and closes. The last line has "event":"done" and "exit": the command's exit code (0 done, 1 failed, 3 time ran out), and "message" when exit is not 0.
 *
 * Paths are relative to the mount point, no leading '/', "" = root. warmup, evict, pin, unpin and wait look behind symlinks; those that lead out of the mount are errors.
 *
 * request                                                       lines before "done"
 * {"verb":"status"}                                             {"event":"status", ...the fields of `sluice status --json`}
 * {"verb":"info","paths":[...]}                                 {"event":"info","path":...,...} one per path, or {"event":"error","path":,"error":}
 * {"verb":"warmup","paths":[],"parallel":8,"check":false,"evict":false,"background":false,"timeout_s":0}
 *       {"event":"progress","files_done":,"files_total":,"bytes_done":,"bytes_total":,"errors":} about 4 a second, {"event":"error","path":,"error":},
 *       at the end one more progress; with background: {"event":"job","id":N} and done at once. "check": what is present, nothing fetched: {"event":"check","path":,"cached_bytes":,"size":}
 * {"verb":"warmup-status"} {"verb":"warmup-stop","id":N}        {"event":"job","id":,"state":"running|done|failed|stopped", + progress fields}
 * {"verb":"evict","paths":[]}                                   {"event":"evicted","bytes":,"files":}, errors
 * {"verb":"pin","paths":[],"latest":N}  {"verb":"unpin",...}    paths may be globs with latest ('ckpt/STAR.pt'); {"event":"pinned","path":} per match
 * {"verb":"wait","paths":[],"timeout_s":60}                     progress lines {"event":"progress","files_left":,"bytes_left":}
 * {"verb":"publish","action":"retry"|"skip","paths":[]}
 * {"verb":"conflicts","action":"list","paths":[]}               {"event":"conflict","id":,"path":,"state":"conflict|open|parked","size":,"lost_at":,"base_etag":,"winner_etag":,...};
 *       no id while writers have the file open, or when parked; without action and paths: list all
 * {"verb":"conflicts","action":"show","id":N | "paths":[ONE]}   the same with "local_bytes","complete"
 * {"verb":"conflicts","action":"keep-mine|keep-theirs|save-as","id":N | "paths":[ONE],"to":}   {"event":"resolved","id":,"path":,"action":,"size":}
 * {"verb":"drain","timeout_s":0}                                progress as wait
 * {"verb":"config"}                                             {"event":"config","text":}
 * {"verb":"upgrade","program":"/ABSOLUTE"}                      the program was found fit, this process ends and it goes on
 * {"verb":"stop"}                                               daemon makes local state durable, unmounts (a mount in use: exit 1, and it goes on), exits
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
