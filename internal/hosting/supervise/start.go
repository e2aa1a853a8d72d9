package supervise

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"syscall"
	"time"
)

// gate is a process that waits to become a program.
type gate struct {
	main *process
	// word leads to the process, and failures comes from it; it is closed when the process becomes the program.
	word, failures *os.File
}

// startGate starts a gate in a session of its own, which writes to a file.
func startGate(argv []string, output string) (*gate, error) {
	null, err := os.Open(os.DevNull)
	if err != nil {
		return nil, err
	}
	defer null.Close()
	log, err := openOutput(output)
	if err != nil {
		return nil, err
	}
	defer log.Close()
	hears, word, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	defer hears.Close()
	failures, fails, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, word.Close())
	}
	defer fails.Close()
	g := &gate{word: word, failures: failures}
	files := []*os.File{null, log, log, hears, fails} // wordFD and failureFD are the last ones
	started, err := os.StartProcess(argv[0], argv, &os.ProcAttr{
		Dir: "/", Env: []string{}, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	if err != nil {
		g.close()
		return nil, err
	}
	if g.main, err = openProcess(started.Pid, 0); err != nil {
		g.close() // so the process ends
		_, waitErr := started.Wait()
		return nil, errors.Join(err, waitErr)
	}
	return g, started.Release()
}

// close closes the pipes: a gate that has not received the word ends.
func (g *gate) close() {
	_ = g.word.Close() // what was written is with the kernel
	_ = g.failures.Close()
}

// abandon ends a gate that is not to become the program, or has failed to.
func (g *gate) abandon() error {
	// Even a killed process may hang in the kernel, while it reads its executable for example.
	const most = 5 * time.Second
	ctx, cancel := context.WithTimeout(context.Background(), most)
	defer cancel()
	err := g.main.signal(syscall.SIGKILL)
	if err == nil {
		err = g.main.wait(ctx)
	}
	g.main.exit()
	return errors.Join(err, g.main.Close())
}

// say sends a gate the program that it becomes. It fails if ctx ends before.
func (g *gate) say(ctx context.Context, p *Program) error {
	defer context.AfterFunc(ctx, func() { _ = g.word.SetWriteDeadline(time.Unix(1, 0)) })()
	return json.NewEncoder(g.word).Encode(word{
		Argv: toBytes(p.Argv), Env: toBytes(p.Env), Dir: []byte(p.dir()), Handed: []byte(p.Handed),
	})
}

// failure returns nil when the gate has become the program, or has ended, or when ctx has ended; else what it says.
func (g *gate) failure(ctx context.Context) *failure {
	defer context.AfterFunc(ctx, func() { _ = g.failures.SetReadDeadline(time.Unix(1, 0)) })()
	const most = 1 << 10
	var f failure
	if err := json.NewDecoder(io.LimitReader(g.failures, most)).Decode(&f); err != nil {
		return nil
	}
	return &f
}
