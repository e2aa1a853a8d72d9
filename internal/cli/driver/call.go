package driver

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc/codes"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"volplane.dev/volplane/internal/cli/shell"
	"volplane.dev/volplane/internal/csi"
	"volplane.dev/volplane/internal/gather"
	"volplane.dev/volplane/internal/hosting/driverfile"
)

// maxCallRequest is the size limit of a request in JSON, in bytes.
const maxCallRequest = 1 << 20

// callFlags are the flags of 'driver call'.
type callFlags struct {
	hostFlags
	request, secrets, socket, output string
	yes                              bool
	timeout                          time.Duration
}

// callResult is what a call has brought, as JSON.
type callResult struct {
	Driver  string          `json:"driver"`
	Method  string          `json:"method"`
	Code    string          `json:"code"`
	Error   string          `json:"error,omitempty"`
	Seconds float64         `json:"seconds"`
	Answer  json.RawMessage `json:"answer,omitempty"`

	code codes.Code
}

func callCommand(s *shell.Shell) *cobra.Command {
	var f callFlags
	c := &cobra.Command{
		Use:   "call NAME METHOD",
		Short: "Call a method of a CSI driver manually",
		Long: `Call a method of a CSI driver at its socket on this host, and print the answer as
JSON. The request is JSON with the names of the CSI specification; empty without
--json. The answer is printed as it is, with contexts.

volplane does not notice these calls, and does not hold back its own calls for the
same volume. So calls that change something need --yes. Secrets
are not accepted on the command line, which other users can read: use
--secrets-from, or a file.

Exit codes: 0 if the driver has answered, 64 and the gRPC code of its error (69
for NOT_FOUND), 1 if it was not called.`,
		Example: `  volplane driver call csi.example.com ControllerGetCapabilities
  volplane driver call csi.example.com NodeGetVolumeStats --json '{"volume_id": "v1", "volume_path": "/srv/data"}'
  volplane driver call csi.example.com DeleteVolume --json @request.json --secrets-from storage/cloud --yes`,
		Args: cobra.ExactArgs(2), ValidArgsFunction: completeCall(s),
		RunE: func(cmd *cobra.Command, args []string) error { return call(cmd.Context(), s, f, args[0], args[1]) },
	}
	f.register(c)
	p := c.Flags()
	p.StringVar(&f.request, "json", "", "request as JSON, @FILE with it, or - for standard input")
	p.StringVar(&f.secrets, "secrets-from", "", "Secret with the secrets of the request, as NAMESPACE/NAME")
	p.StringVar(&f.socket, "socket", "", "path of the driver's socket (default the one of its process)")
	p.BoolVarP(&f.yes, "yes", "y", false, "also call methods that change something")
	p.DurationVar(&f.timeout, "timeout", 0, "how long to wait for the answer (default as volplane waits)")
	p.StringVarP(&f.output, "output", "o", "", "output format: json or yaml, with code, error and time")
	return c
}

func completeCall(s *shell.Shell) cobra.CompletionFunc {
	return func(c *cobra.Command, args []string, word string) ([]string, cobra.ShellCompDirective) {
		if len(args) != 1 {
			return completeCalled(s)(c, args, word)
		}
		var out []string
		for _, m := range csi.Methods() {
			out = append(out, path.Base(m))
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}

func call(ctx context.Context, s *shell.Shell, f callFlags, name, method string) error {
	h, err := calledDriver(s, f.hostFlags, name)
	if err != nil {
		return err
	}
	full, err := methodNamed(method)
	if err != nil {
		return err
	}
	request, answer := csi.NewMessages(full)
	if err := readRequest(ctx, s, f, request); err != nil {
		return err
	}
	if !f.yes && !isRead(method) {
		return fmt.Errorf("%s changes the state of driver %s, and volplane does not notice it%s: add --yes to call it",
			method, name, affected(ctx, s, name, request))
	}
	if f.socket == "" {
		if f.socket, err = h.socketOf(name, roleOf(full)); err != nil {
			return err
		}
	}
	result, err := f.call(ctx, name, full, request, answer)
	if err != nil {
		return err
	}
	return printCall(s, f.output, result)
}

// methodNamed returns the full name of a method.
func methodNamed(name string) (string, error) {
	all := csi.Methods()
	i := slices.IndexFunc(all, func(m string) bool { return path.Base(m) == name })
	if i >= 0 {
		return all[i], nil
	}
	i = slices.IndexFunc(all, func(m string) bool { return strings.EqualFold(path.Base(m), name) })
	if i >= 0 {
		return "", fmt.Errorf("CSI does not have the method %s: did you mean %s?", name, path.Base(all[i]))
	}
	return "", fmt.Errorf("CSI does not have the method %.60q: use a name such as CreateVolume", name)
}

// roleOf returns the role of the process that is asked.
func roleOf(method string) driverfile.Role {
	if strings.Contains(path.Dir(method), "Controller") {
		return driverfile.RoleController
	}
	return driverfile.RoleNode
}

// isRead says whether a method changes nothing.
func isRead(method string) bool {
	deed := strings.TrimPrefix(strings.TrimPrefix(strings.TrimPrefix(method, "Group"), "Controller"), "Node")
	return slices.ContainsFunc([]string{"Get", "List", "Probe", "Validate"}, func(verb string) bool {
		return strings.HasPrefix(deed, verb)
	})
}

// readRequest reads the request and its secrets.
func readRequest(ctx context.Context, s *shell.Shell, f callFlags, request proto.Message) error {
	text, literal := []byte(f.request), true
	var err error
	switch {
	case f.request == "-":
		text, err = io.ReadAll(io.LimitReader(s.In, maxCallRequest+1))
		literal = false
	case strings.HasPrefix(f.request, "@"):
		text, err = readLimited(f.request[1:])
		literal = false
	case f.request == "":
		text = []byte("{}")
	}
	if err == nil && len(text) > maxCallRequest {
		err = fmt.Errorf("the request has more than %d bytes", maxCallRequest)
	}
	if err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	if err := protojson.Unmarshal(text, request); err != nil {
		return fmt.Errorf("--json: this is not a %s%s", request.ProtoReflect().Descriptor().Name(), place(err.Error()))
	}
	if literal && csi.HasSecrets(request) {
		return errors.New("--json has secrets, which other users can read on the command line: use --secrets-from " +
			"NAMESPACE/NAME, or --json @FILE")
	}
	if f.secrets == "" {
		return nil
	}
	return addSecrets(ctx, s, f.secrets, request)
}

// place returns what an error about JSON says without a value in it, which may be a secret.
func place(text string) string {
	if i := strings.Index(text, "(line "); i >= 0 {
		at, rest, _ := strings.Cut(text[i:], "):")
		if field := strings.TrimSpace(rest); strings.HasPrefix(field, "unknown field") {
			return ": " + field + " " + at + ")"
		}
		return ": wrong syntax or type " + at + ")"
	}
	return ""
}

func readLimited(path string) ([]byte, error) {
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	return io.ReadAll(io.LimitReader(file, maxCallRequest+1))
}

// addSecrets adds the values of a Secret to a request.
func addSecrets(ctx context.Context, s *shell.Shell, from string, request proto.Message) error {
	ns, name, ok := strings.Cut(from, "/")
	if !ok || ns == "" || name == "" {
		return fmt.Errorf("--secrets-from %q: want NAMESPACE/NAME", from)
	}
	client, _, err := s.Client()
	if err != nil {
		return err
	}
	secret, err := client.CoreV1().Secrets(ns).Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("get secret %s: %w", from, err)
	}
	values := map[string]string{}
	for key, value := range secret.Data {
		values[key] = string(value)
	}
	if !csi.FillSecrets(request, values) {
		return fmt.Errorf("--secrets-from: this request has no secrets")
	}
	return nil
}

// affected names the PersistentVolume that a request is about, as far as the API can be asked.
func affected(ctx context.Context, s *shell.Shell, driver string, request proto.Message) string {
	about, ok := request.(interface{ GetVolumeId() string })
	client, _, err := s.Client()
	if !ok || err != nil || about.GetVolumeId() == "" {
		return ""
	}
	ctx, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	volumes := client.CoreV1().PersistentVolumes()
	// What cannot be read is omitted.
	all, _ := gather.Every[*corev1.PersistentVolume](ctx, "volumes", metav1.ListOptions{}, volumes.List)
	for _, v := range all {
		if v.Spec.CSI == nil || v.Spec.CSI.Driver != driver || v.Spec.CSI.VolumeHandle != about.GetVolumeId() {
			continue
		}
		of := ""
		if c := v.Spec.ClaimRef; c != nil {
			of = " of claim " + c.Namespace + "/" + c.Name
		}
		return fmt.Sprintf(" (the volume is PersistentVolume %s%s)", v.Name, of)
	}
	return ""
}

// call calls the driver at the socket.
func (f *callFlags) call(
	ctx context.Context, name, method string, request, answer proto.Message,
) (out callResult, err error) {
	dial, cancel := context.WithTimeout(ctx, answerTime)
	defer cancel()
	d, err := csi.Dial(dial, f.socket, csi.WithNameOnly())
	if err != nil {
		return out, err
	}
	defer d.Close()
	if err := csi.CheckIs(d, name); err != nil {
		return out, err
	}
	if f.timeout > 0 {
		limited, cancel := context.WithTimeout(ctx, f.timeout)
		defer cancel()
		ctx = limited
	}
	begun := time.Now()
	failed := d.Call(ctx, method, request, answer)
	out = callResult{
		Driver: name, Method: path.Base(method), Code: csi.Code(failed).String(), code: csi.Code(failed),
		Seconds: time.Since(begun).Seconds(),
	}
	if failed != nil {
		out.Error = csi.AnswerOf(failed).Text
		return out, nil
	}
	text, err := protojson.MarshalOptions{UseProtoNames: true}.Marshal(answer)
	if err != nil {
		return out, fmt.Errorf("answer of the driver: %w", err)
	}
	out.Answer = text
	return out, nil
}

// printCall prints what a call has brought; the error of the driver is returned.
func printCall(s *shell.Shell, output string, r callResult) error {
	printed, err := s.PrintStructured(output, r)
	if err == nil && !printed && r.Error == "" {
		var text bytes.Buffer
		if err = json.Indent(&text, r.Answer, "", "  "); err == nil {
			_, err = fmt.Fprintln(s.Out, text.String())
		}
	}
	if err != nil || r.Error == "" {
		return err
	}
	const first = 64 // as grpcurl has it
	return &shell.CodeError{
		Code: first + int(min(r.code, codes.Unauthenticated+1)),
		Text: fmt.Sprintf("driver %s answers %s: %s", r.Driver, r.Method, r.Error),
	}
}
