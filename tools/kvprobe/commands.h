/* SPDX-License-Identifier: Apache-2.0 */
/* The subcommands. argv[0] is "kvprobe NAME". Each returns the exit code (enum exit_code). */
#ifndef KVPROBE_COMMANDS_H
#define KVPROBE_COMMANDS_H

int cmd_list(int argc, char **argv);
int cmd_log(int argc, char **argv);
int cmd_stat(int argc, char **argv);
int cmd_check(int argc, char **argv);
int cmd_xfer(int argc, char **argv);
int cmd_doctor(int argc, char **argv);

#endif
