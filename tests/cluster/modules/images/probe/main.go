// What a pod can see of the cluster, in one static program for images made from scratch:
//
//	probe serve ADDRESS   answer every HTTP request with this pod's name
//	probe get URL         print the body, exit 1 unless the status is 200
//	probe resolve NAME    print the addresses, one a line
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"
)

func main() {
	log.SetFlags(0)
	if len(os.Args) != 3 {
		log.Fatal("usage: probe serve ADDRESS | get URL | resolve NAME")
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	run, known := map[string]func(context.Context, string) error{"serve": serve, "get": get, "resolve": resolve}[os.Args[1]]
	if !known {
		log.Fatalf("unknown command %q: serve, get or resolve", os.Args[1])
	}
	if err := run(ctx, os.Args[2]); err != nil {
		log.Fatal(err)
	}
}

func serve(ctx context.Context, address string) error {
	name, err := os.Hostname()
	if err != nil {
		return err
	}
	server := &http.Server{Addr: address, ReadHeaderTimeout: 5 * time.Second}
	server.Handler = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, name) })
	go func() {
		<-ctx.Done()
		server.Close()
	}()
	if err := server.ListenAndServe(); err != http.ErrServerClosed {
		return err
	}
	return nil
}

func get(ctx context.Context, url string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("%s answered %s", url, response.Status)
	}
	_, err = io.Copy(os.Stdout, response.Body)
	return err
}

func resolve(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	addresses, err := net.DefaultResolver.LookupHost(ctx, name)
	for _, address := range addresses {
		fmt.Println(address)
	}
	return err
}
