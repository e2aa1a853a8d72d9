package sidecar_test

import (
	"errors"
	"fmt"
	"os"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"volplane.dev/volplane/internal/sidecar"
)

// parse parses arguments of a program, and reports errors and flags without effect.
func parse(program, args string, env ...string) (sidecar.Options, string) {
	role, _ := sidecar.RoleOf("/" + program)
	o, without, err := role.Parse(program, strings.Fields(args), func(name string) string {
		for _, pair := range env {
			if key, value, _ := strings.Cut(pair, "="); key == name {
				return value
			}
		}
		return ""
	})
	if err != nil {
		return o, err.Error()
	}
	return o, strings.Join(without, ", ")
}

// lines returns the lines of a table in testdata.
func lines(t *testing.T, name string) []string {
	t.Helper()
	text, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(strings.Split(strings.TrimRight(string(text), "\n"), "\n"), func(l string) bool {
		return strings.HasPrefix(l, "#")
	})
}

// TestArguments: arguments as in manifests, and their effects.
func TestArguments(t *testing.T) {
	for _, line := range lines(t, "arguments.txt") {
		parts := strings.Split(line, " | ")
		program, args, _ := strings.Cut(parts[0], " ")
		o, problem := parse(program, args)
		field := reflect.ValueOf(o)
		for _, name := range strings.Split(parts[1], ".") {
			field = field.FieldByName(name)
		}
		if got := fmt.Sprintf("%+v", reflect.Indirect(field)); problem != "" || got != parts[2] {
			t.Errorf("%s: %s is %s, want %s %s", parts[0], parts[1], got, parts[2], problem)
		}
	}
}

// TestProblems: invalid arguments, and those without effect.
func TestProblems(t *testing.T) {
	all := lines(t, "problems.txt")
	for i := 0; i < len(all); i += 2 {
		program, args, _ := strings.Cut(all[i], " ")
		if _, got := parse(program, args); got != strings.TrimPrefix(all[i+1], "\t") {
			t.Errorf("%s:\n got %s\nwant %s", all[i], got, all[i+1])
		}
	}
}

// TestVendors: the arguments in drivers' charts are accepted, and have an effect unless the list says otherwise.
func TestVendors(t *testing.T) {
	all := lines(t, "vendors.txt")
	for i, line := range all {
		if strings.HasPrefix(line, "\t") {
			continue
		}
		want := ""
		if i+1 < len(all) && strings.HasPrefix(all[i+1], "\t") {
			want = strings.TrimPrefix(all[i+1], "\t")
		}
		program, args, _ := strings.Cut(strings.TrimPrefix(line, "/"), " ")
		if _, got := parse(program, args, "NAMESPACE=topolvm-system", "POD_NAME=p"); got != want {
			t.Errorf("%s:\n got %q\nwant %q", line, got, want)
		}
	}
}

// TestUsageErrorsAreTold: upstream's programs end with 2 for arguments that they do not understand.
func TestUsageErrorsAreTold(t *testing.T) {
	_, _, err := sidecar.Attacher.Parse("csi-attacher", []string{"--nonsense"}, func(string) string { return "" })
	var usage *sidecar.UsageError
	if !errors.As(err, &usage) {
		t.Errorf("%v is no usage error", err)
	}
	if _, _, err = sidecar.Attacher.Parse("csi-attacher", []string{"-help"}, nil); !errors.Is(err, sidecar.ErrHelp) {
		t.Errorf("-help is answered with %v", err)
	}
}

// TestEnvironment: the variables that upstream's programs read.
func TestEnvironment(t *testing.T) {
	o, problem := parse("csi-provisioner", "--enable-capacity --node-deployment --kubeconfig=/flag", "POD_NAMESPACE=a",
		"NAMESPACE=b", "POD_NAME=p", "NODE_NAME=n", "KUBECONFIG=/env")
	owner := sidecar.CapacityOwner{Namespace: "b", Pod: "p", Level: 1}
	if problem != "" || o.Namespace != "a" || o.Provisioner.OnNode.Node != "n" || o.Kubeconfig != "/env" ||
		o.CapacityOwner == nil || *o.CapacityOwner != owner {
		t.Errorf("got %+v %s", o.ControllersOptions, problem)
	}
}

// parseSeveral reads arguments of a process of several sidecars.
func parseSeveral(args string) (sidecar.Options, error) {
	var o sidecar.Options
	set := pflag.NewFlagSet("several", pflag.ContinueOnError)
	set.SetNormalizeFunc(sidecar.Normalise)
	o.AddControllers(set)
	err := set.Parse(strings.Fields(args))
	if err == nil {
		err = o.Settle(sidecar.Provisioner, set, func(string) string { return "" })
	}
	return o, err
}

// TestSeveral: the flags of a process of several sidecars.
func TestSeveral(t *testing.T) {
	o, err := parseSeveral("--attacher-timeout=1s --provisioner-timeout=2s --attacher-worker-thread=3 " +
		"--reconcile-sync=4s --csi-address=unix:///x --resizer-workers=5")
	got := fmt.Sprintln(o.Attacher.Timeout, o.Provisioner.Timeout, o.Attacher.Workers, o.ReconcileSync, o.Socket,
		o.Resizer.Workers, o.Elects, o.Snapshotter.Timeout, err)
	if want := "1s 2s 3 4s /x 5 true 0s <nil>\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestSeveralAtOnce: the flags of the enhancement for several sidecars in one process, and the time limit of those that
// have none of their own.
func TestSeveralAtOnce(t *testing.T) {
	for args, want := range map[string]string{
		"":             "0s 0s 0s 0s 0s",
		"--timeout=9s": "9s 9s 9s 9s 9s",
		"--timeout=9s --attacher-timeout=1s --resizer-timeout=2s":   "9s 1s 2s 2s 9s",
		"--modify-timeout=3s --snapshotter-timeout=4s --timeout=9s": "9s 9s 9s 3s 4s",
	} {
		o, err := parseSeveral(args)
		got := fmt.Sprint(o.Provisioner.Timeout, o.Attacher.Timeout, o.Resizer.Timeout, o.Resizer.ModifyTimeout,
			o.Snapshotter.Timeout)
		if got != want || err != nil {
			t.Errorf("%s: got %s, want %s %v", args, got, want, err)
		}
	}
	for _, spelled := range []string{"resizer-workers", "resizer-worker-threads", "resizer-worker-thread", "workers"} {
		if o, err := parseSeveral("--" + spelled + "=5"); err != nil || o.Resizer.Workers != 5 {
			t.Errorf("--%s: %d workers, %v", spelled, o.Resizer.Workers, err)
		}
	}
	if o, err := parseSeveral("--timeout=-1s"); err == nil {
		t.Errorf("a negative time limit is taken: %v", o.Provisioner.Timeout)
	}
}

// TestEntriesOfSeveral: without a value it is volplane's own number, and 0 is an explicit value.
func TestEntriesOfSeveral(t *testing.T) {
	if o, err := parseSeveral(""); err != nil || o.Attacher.MaxEntries != nil {
		t.Errorf("without the flag: %v, %v", o.Attacher.MaxEntries, err)
	}
	o, err := parseSeveral("--max-entries=0")
	if n := o.Attacher.MaxEntries; err != nil || n == nil || *n != 0 {
		t.Errorf("with 0: %v, %v", n, err)
	}
}

// TestTable: the table is complete: every flag has a reason or an effect, and no program has one twice.
func TestTable(t *testing.T) {
	for _, name := range sidecar.Programs() {
		role, ok := sidecar.RoleOf(name)
		if !ok {
			t.Fatalf("%s has no role", name)
		}
		var names []string
		for _, f := range role.Flags() {
			names = append(names, f.Name)
			if f.Usage == "" || strings.HasSuffix(f.Usage, ".") {
				t.Errorf("--%s of %s has no good text: %q", f.Name, name, f.Usage)
			}
		}
		slices.Sort(names)
		if twice := len(names) - len(slices.Compact(slices.Clone(names))); twice > 0 {
			t.Errorf("%s has %d flags twice: %v", name, twice, names)
		}
		if !strings.Contains(role.Help(name), "--v int") {
			t.Errorf("the help of %s has no --v", name)
		}
	}
}
