package driver

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/csi/recording"
	"volplane.dev/volplane/internal/csi/trace"
	"volplane.dev/volplane/internal/hosting/driverfile"
	"volplane.dev/volplane/internal/kube"
	"volplane.dev/volplane/internal/process/redact"
)

// maxRecording is the size of the largest recording that is read, in bytes.
const maxRecording = 64 << 20

func recordCommand(s *shell.Shell) *cobra.Command {
	var f hostFlags
	var follow bool
	c := &cobra.Command{
		Use:   "record NAME FILE",
		Short: "Save the calls to a CSI driver to a file, for a report of a bug",
		Long: `Save the calls of the last hour to a CSI driver to a file, and with --follow also
those that come, until interrupted. Before, the driver is asked what it is and
can. The file must not exist. It has one JSON object in each line, and no secrets:
see 'volplane driver trace'. Look through it before you publish it, for names of
hosts, for example. 'volplane driver replay' plays it.`,
		Example: `  volplane driver record csi.example.com calls.jsonl`,
		Args:    cobra.ExactArgs(2), ValidArgsFunction: completeCalled(s),
		RunE: func(cmd *cobra.Command, args []string) error {
			return record(cmd.Context(), s, f, args[0], args[1], follow)
		},
	}
	f.register(c)
	c.Flags().BoolVarP(&follow, "follow", "f", false, "also save what follows, until interrupted")
	return c
}

func record(ctx context.Context, s *shell.Shell, f hostFlags, name, path string, follow bool) (err error) {
	h, err := calledDriver(s, f, name)
	if err != nil {
		return err
	}
	header := recording.Header{Driver: name, RecordedAt: time.Now().UTC().Truncate(time.Second), RecordedBy: s.Version}
	said := h.introduce(ctx, &header)
	file, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	saved := 0
	defer func() {
		err = errors.Join(err, file.Close())
		if err != nil && saved == 0 {
			err = errors.Join(err, os.Remove(path))
		}
	}()
	w, err := recording.NewWriter(file, header)
	if err != nil {
		return fmt.Errorf("record: %w", err)
	}
	for _, c := range said {
		if err := w.Add(c); err != nil {
			return fmt.Errorf("record: %w", err)
		}
	}
	gaps := gaps{out: s.Err}
	err = h.traced.Calls(ctx, name, follow, func(e trace.Entry) error {
		gaps.see(e.Number)
		saved++
		return w.Add(e.Call)
	})
	if err == nil {
		fmt.Fprintf(s.Out, "driver/%s: %d calls saved to %s\n", name, saved, path)
	}
	return err
}

// introduce queries a driver's identity and capabilities, and returns these calls. Replaying needs them, and the
// recorded ones may have been forgotten after an hour.
func (h *hostDrivers) introduce(ctx context.Context, header *recording.Header) []csi.Call {
	var calls []csi.Call
	asked := ""
	for _, role := range hostRoles() {
		socket, err := h.socketOf(header.Driver, role)
		if err == nil && socket != asked {
			asked = socket
			err = introduced(ctx, socket, header, func(c csi.Call) { calls = append(calls, c) })
		}
		if err != nil {
			fmt.Fprintf(h.err, "The recording lacks what the %s of the driver reports about itself: %v\n", role, err)
		}
	}
	return calls
}

func introduced(ctx context.Context, socket string, header *recording.Header, see func(csi.Call)) error {
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	d, err := csi.Dial(ctx, socket, csi.WithTrace(see), csi.WithExpectedName(header.Driver))
	if err != nil {
		return err
	}
	defer d.Close()
	header.DriverVersion = d.Version
	// A process with the controller only has no node.
	if _, err := d.NodeInfo(ctx); err != nil && !d.HasController {
		return err
	}
	return nil
}

func replayCommand(s *shell.Shell) *cobra.Command {
	var socket string
	var speed float64
	c := &cobra.Command{
		Use:   "replay FILE",
		Short: "Answer as a recorded CSI driver did",
		Long: `Serve a CSI driver that answers as a recorded one did, until interrupted. A call
gets the answers to the recorded calls of the same method with the same request,
in their order, and the last of them again and again. The error for a request that
was not recorded says in what it differs from the nearest one.

The socket is --socket, else CSI_ENDPOINT, else one in a new directory. So the
command can be run by 'volplane driver add NAME --exec ...'.`,
		Example: `  volplane driver replay calls.jsonl --socket /tmp/csi.sock
  volplane driver call csi.example.com GetPluginInfo --socket /tmp/csi.sock`,
		Args: cobra.ExactArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return replay(cmd.Context(), s, args[0], socket, speed)
		},
	}
	c.Flags().StringVar(&socket, "socket", "", "path of the socket to serve")
	c.Flags().Float64Var(&speed, "speed", 0,
		"how many times faster than the driver to answer, 1 for the recorded speed; 0 without delay")
	_ = c.MarkFlagFilename("socket")
	return c
}

func replay(ctx context.Context, s *shell.Shell, path, socket string, speed float64) error {
	if speed < 0 {
		return fmt.Errorf("--speed %g: want 0 or more", speed)
	}
	recorded, err := readRecording(path)
	if err != nil {
		return fmt.Errorf("replay %s: %w", path, err)
	}
	if socket == "" {
		socket = strings.TrimPrefix(os.Getenv(driverfile.VarEndpoint), "unix://")
	}
	if socket == "" {
		dir, err := os.MkdirTemp("", "replay-")
		if err != nil {
			return fmt.Errorf("create directory of socket: %w", err)
		}
		defer func() { _ = os.RemoveAll(dir) }()
		socket = filepath.Join(dir, "csi.sock")
	}
	player, unplayable := recording.NewPlayer(recorded)
	if unplayable > 0 {
		fmt.Fprintf(s.Err, "%d calls cannot be played: their requests or answers were too large to be recorded\n", unplayable)
	}
	player.Speed = speed
	player.Report = func(c csi.Call) { fmt.Fprintln(s.Out, callLine(c)) }
	fmt.Fprintf(s.Out, "%s, answers at %s\n", redact.Printable(recorded.Name()), socket)
	err = player.Serve(ctx, socket)
	return kube.Unless(ctx.Err() != nil, err)
}

func readRecording(path string) (recording.Recording, error) {
	file, err := os.Open(path)
	if err != nil {
		return recording.Recording{}, err
	}
	defer file.Close()
	return recording.Read(io.LimitReader(file, maxRecording))
}
