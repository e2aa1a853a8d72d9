package driver

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/trace"
	"volplane.dev/volplane/internal/process/redact"
)

// traceFlags are the flags of 'driver trace'.
type traceFlags struct {
	hostFlags
	follow bool
	output string
}

func traceCommand(s *shell.Shell) *cobra.Command {
	var f traceFlags
	c := &cobra.Command{
		Use:   "trace NAME",
		Short: "Print the calls of volplane to a CSI driver",
		Long: `Print the calls of this host's control plane or node agent to a CSI driver: when,
which method, the gRPC code, how long it took, the request and the answer. With
--follow, print also what is called from now on. The last hour is remembered, up
to 1,000 calls and 512 KiB for each driver, and not over a restart; what was
dropped is said on standard error.

Secrets are not shown, nor are the values of volume contexts, publish contexts
and mount flags.`,
		Example: `  volplane driver trace csi.example.com
  volplane driver trace csi.example.com -f -o json | jq 'select(.code != "OK")'`,
		Args: cobra.ExactArgs(1), ValidArgsFunction: completeCalled(s),
		RunE: func(cmd *cobra.Command, args []string) error { return printTrace(cmd.Context(), s, f, args[0]) },
	}
	f.register(c)
	c.Flags().BoolVarP(&f.follow, "follow", "f", false, "print what follows, until interrupted")
	c.Flags().StringVarP(&f.output, "output", "o", "", "output format: json, one object in each line")
	return c
}

func printTrace(ctx context.Context, s *shell.Shell, f traceFlags, name string) error {
	h, err := calledDriver(s, f.hostFlags, name)
	if err != nil {
		return err
	}
	out, gaps, printed := json.NewEncoder(s.Out), gaps{out: s.Err}, 0
	err = h.traced.Calls(ctx, name, f.follow, func(e trace.Entry) error {
		gaps.see(e.Number)
		printed++
		if f.output == "json" {
			return out.Encode(e)
		}
		_, err := fmt.Fprintln(s.Out, callLine(e.Call))
		return err
	})
	if err == nil && printed == 0 && !f.follow {
		fmt.Fprintf(s.Err, "No calls to driver %s in the last hour, or since the process was started\n", name)
	}
	return err
}

// gaps finds calls that were dropped by the numbers of those that were not, and says so.
type gaps struct {
	last uint64
	out  io.Writer
}

func (g *gaps) see(number uint64) {
	if number > g.last+1 {
		fmt.Fprintf(g.out, "(%d calls before the next one are not remembered)\n", number-g.last-1)
	}
	g.last = number
}

// callLine returns a call as one line for people.
func callLine(c csi.Call) string {
	end := "-> " + string(c.Answer)
	if c.Error != "" || len(c.Answer) == 0 {
		end = c.Error
	}
	took := time.Duration(c.Seconds * float64(time.Second)).Round(100 * time.Microsecond)
	line := fmt.Sprintf("%s %s %s %s %s %s", c.Time.Format("2006-01-02T15:04:05.000Z07:00"), path.Base(c.Method), c.Code,
		took, c.Request, end)
	return strings.TrimSpace(redact.Printable(line))
}
