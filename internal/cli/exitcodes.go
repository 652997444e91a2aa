package cli

import "github.com/spf13/cobra"

func newExitCodes() *cobra.Command {
	return &cobra.Command{
		Use:   "exit-codes",
		Short: "What the exit codes mean",
		Long: `Every verb ends with one of these codes:

  0  done. For "trace": the packet would be forwarded
  1  failed; the reason is on standard error. For "status": the agent is not ready.
     For "connectivity test": a pair could not talk. For "preflight": a check failed.
     For "apply": something is wrong with the objects, and nothing was written.
     For "get" and "delete": there is no such object
  2  called wrongly: an unknown verb, flag or argument, or several agents and none named
  3  no agent answers
  4  for "trace" only: the packet would be dropped
  5  for "encrypt verify" only: something was readable on the wire
  6  for "encrypt verify" only: too little was seen to tell
  7  for "policy check" only: something is wrong with an object
  8  for "policy check" and "policy explain": the packet would be denied
  9  for "policy explain" only: what the agent has compiled and what the datapath's maps hold differ

"lab exec" and "lab run" end with the code of the command that they ran.`,
	}
}
